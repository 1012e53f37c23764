"""Record every operator of a few steps: its time, its tensors' shapes, its FLOPs and its bytes."""

from __future__ import annotations

import time

from cputrain.runtime.flops import count_flops, is_counted
from cputrain.runtime.traffic import StepTraffic, Traffic, is_plain, tensors_in, traffic_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NUM_SAMPLED = 1 << 14
"""Number of elements of a result that are checked for denormals."""

NUM_SHAPES = 4
"""Maximum number of tensors of a call whose shapes are recorded."""

PRECISIONS = {
    "convolution": "conv", "convolution_backward": "conv",
    "mkldnn_rnn_layer": "rnn", "mkldnn_rnn_layer_backward": "rnn",
}  # fmt: skip
"""Backend of torch.backends.mkldnn whose fp32_precision an operator obeys; by default "matmul"."""


class OperatorTrace:
    """Trace of the operators that are called between `begin` and `stop`."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.phase = "forward"
        """Phase of the step: "forward", "backward" or "optimizer"."""
        self._records: dict[Any, dict[str, Any]] = {}
        self._layer_classes: dict[str, str] = {}
        self._timeline: list[tuple[int, float, float]] = []
        self._step_start = 0.0
        self._step_traffic = StepTraffic()
        self._num_denormal = self._num_sampled = 0
        self._uncounted: dict[str, str] = {}
        self._mode: Any = None
        self._tracker: Any = None
        self._hook: Any = None
        self._stance: Any = None

    def begin(self) -> None:
        """Start recording operators."""
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils.module_tracker import ModuleTracker

        torch, record = self._torch, self._record
        dispatch_mode: Any = TorchDispatchMode

        class Recording(dispatch_mode):  # type: ignore[misc]
            supports_higher_order_operators = True

            def __torch_dispatch__(
                self, func: Any, types: Any, args: Any = (), kwargs: Any = None
            ) -> Any:
                kwargs = kwargs or {}
                if not isinstance(func, torch._ops.OpOverload):  # a higher-order operator
                    return func(*args, **kwargs)
                if torch.is_inference_mode_enabled():  # torch decomposes only outside of it
                    with self:
                        result = func.decompose(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
                begin = time.perf_counter()
                result = func(*args, **kwargs)
                record(func, args, kwargs, result, begin, time.perf_counter() - begin)
                return result

        # run compiled functions operator by operator; torch does so under a dispatch mode anyway,
        # but fails for functions compiled with fullgraph=True
        self._stance = torch.compiler.set_stance("force_eager")
        self._tracker = ModuleTracker()
        self._tracker.__enter__()
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._name_modules)
        self._mode = Recording()
        self._mode.__enter__()
        self.new_step()

    def new_step(self) -> None:
        """Begin a step; the timeline covers the last step only."""
        self._step_traffic.forget()
        self._timeline, self._step_start = [], time.perf_counter()

    def stop(self) -> None:
        """Stop recording operators."""
        self._mode.__exit__(None, None, None)
        self._hook.remove()
        self._tracker.__exit__(None, None, None)
        self._stance.__exit__(None, None, None)

    def _name_modules(self, module: Any, _: object) -> None:
        """Record the class of each layer of a model when the model is first called."""
        root = type(module).__name__
        if root in self._layer_classes:
            return
        for name, layer in module.named_modules():
            self._layer_classes.setdefault(f"{root}.{name}" if name else root, type(layer).__name__)

    def _record(
        self, func: Any, args: Any, kwargs: Any, result: Any, begin: float, elapsed_s: float
    ) -> None:
        torch = self._torch
        inputs = tensors_in(torch, (args, list(kwargs.values())))
        outputs = tensors_in(torch, (result,))
        if any(not tensor.is_cpu for tensor in (*inputs, *outputs)):
            return
        if any(tensor.is_nested for tensor in (*inputs, *outputs)):
            return  # (a nested tensor has no shape)
        layer = max(
            (name for name in self._tracker.parents if name != "Global"), key=len, default=""
        )
        shapes = tuple(tuple(map(int, tensor.shape)) for tensor in inputs[:NUM_SHAPES])
        first = (inputs or outputs or [None])[0]
        dtype = "" if first is None else str(first.dtype).replace("torch.", "")
        is_known = all(is_plain(torch, tensor) for tensor in (*inputs, *outputs))
        traffic = traffic_of(torch, func, args, kwargs, result) if is_known else Traffic()
        self._step_traffic.add(traffic)
        name = str(func._schema.name)
        flops = self._count_flops(func, args, kwargs, result)
        # calls with equal shapes may differ in other arguments, and so in FLOPs and bytes
        key = (name, shapes, dtype, self.phase, layer, flops, traffic.num_bytes)
        entry = self._records.get(key)
        if entry is None:
            short_name = name.partition("::")[2]
            entry = self._records[key] = {
                "number": len(self._records), "name": short_name, "shapes": shapes, "dtype": dtype,
                "phase": self.phase, "layer": layer, "times": [], "flops": flops,
                "bytes": traffic.num_bytes, "numbers": traffic.num_elements,
                "channels_last": _is_channels_last(inputs),
                "elementwise": torch.Tag.pointwise in func.tags,
                "computed_in": self._computed_in(short_name, dtype) if flops else "",
            }  # fmt: skip
        entry["times"].append(elapsed_s)
        self._timeline.append((entry["number"], begin - self._step_start, elapsed_s))
        if outputs and is_known:
            self._look_for_denormals(outputs[0])

    def _count_flops(self, func: Any, args: Any, kwargs: Any, result: Any) -> int:
        name = str(func._schema.name).partition("::")[2]
        if name in self._uncounted:
            return 0
        if is_counted(name):
            return count_flops(self._torch, func, args, kwargs, result)
        try:
            return count_flops(self._torch, func, args, kwargs, result)
        except Exception as error:  # a user's formula must not end the script
            self._uncounted[name] = f"{type(error).__name__}: {error}"
            return 0

    def _computed_in(self, name: str, dtype: str) -> str:
        """Return the reduced-precision dtype that float32 is computed in; empty if none."""
        if dtype != "float32":
            return ""
        backend = getattr(self._torch.backends.mkldnn, PRECISIONS.get(name, "matmul"), None)
        precision = getattr(backend, "fp32_precision", None)
        if precision is None:  # torch before 2.9
            precision = {"medium": "bf16"}.get(self._torch.get_float32_matmul_precision(), "")
        return "bfloat16" if precision in {"bf16", "tf32"} else ""

    def _look_for_denormals(self, result: Any) -> None:
        torch = self._torch
        if result.dtype is not torch.float32 or not result.is_contiguous() or not result.numel():
            return
        with torch._C._DisableTorchDispatch():
            sample = result.detach().view(-1)[:NUM_SAMPLED].view(torch.int32)
            magnitude = sample & 0x7FFFFFFF
            self._num_denormal += int(((magnitude > 0) & (magnitude < 0x00800000)).sum())
        self._num_sampled += sample.numel()

    def document(self) -> dict[str, Any]:
        """Return the trace as JSON values.

        These are the operators, the layers' classes, the timeline of the last step, the bytes of
        the steps' tensors, and the fraction of denormals.
        """
        return {
            "operators": [_summarize(entry) for entry in self._records.values()],
            "kinds": self._layer_classes,
            "line": self._timeline,
            "tensor_bytes": self._step_traffic.num_bytes,
            "tiny": self._num_denormal / self._num_sampled if self._num_sampled else 0.0,
            "uncounted": self._uncounted,
        }


def _summarize(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an operator with its total time: the number of calls times their median time.

    The median ignores calls that another program interrupted.
    """
    times = sorted(entry["times"])
    rest = {name: value for name, value in entry.items() if name not in {"times", "number"}}
    return {**rest, "calls": len(times), "seconds": times[len(times) // 2] * len(times)}


def _is_channels_last(inputs: list[Any]) -> bool:
    """Return whether the first tensor is a batch of images in channels_last format."""
    for tensor in inputs[:1]:
        if tensor.dim() == 4 and tensor.size(1) > 1 and str(tensor.layout) == "torch.strided":
            return bool(tensor.stride(1) == 1)
    return False
