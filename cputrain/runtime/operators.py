"""Record every operator of a few steps: its time, its tensors' shapes, its FLOPs and its bytes."""

from __future__ import annotations

import time

from cputrain.runtime.flops import count_flops, is_counted
from cputrain.runtime.traffic import Traffic, is_plain, tensors_in, traffic_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NUM_SAMPLED = 1 << 14
"""Elements of a result in which denormal numbers are looked for."""

NUM_SHAPES = 4
"""Tensors of a call whose shapes are kept."""

PRECISIONS = {
    "convolution": "conv", "convolution_backward": "conv",
    "mkldnn_rnn_layer": "rnn", "mkldnn_rnn_layer_backward": "rnn",
}  # fmt: skip
"""Which of torch's settings lets an operator compute float32 in fewer bits; others are "matmul"."""


class OperatorTrace:
    """The operators that were called between `begin` and `stop`."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self.phase = "forward"
        """Of a step: "forward", "backward" or "optimizer"."""
        self._records: dict[Any, dict[str, Any]] = {}
        self._kinds: dict[str, str] = {}
        self._line: list[tuple[int, float, float]] = []
        self._began = 0.0
        self._num_denormal = self._num_sampled = 0
        self._uncounted: dict[str, str] = {}
        self._mode: Any = None
        self._tracker: Any = None
        self._hook: Any = None
        self._stance: Any = None

    def begin(self) -> None:
        """Record every operator from now on."""
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
                if not isinstance(func, torch._ops.OpOverload):  # flex_attention and the like
                    return func(*args, **kwargs)
                if torch.is_inference_mode_enabled():  # where torch does not do so by itself
                    with self:
                        result = func.decompose(*args, **kwargs)
                    if result is not NotImplemented:
                        return result
                begin = time.perf_counter()
                result = func(*args, **kwargs)
                record(func, args, kwargs, result, begin, time.perf_counter() - begin)
                return result

        # what is compiled runs operator by operator: torch does so by itself, except for functions
        # that must be compiled whole, which fail
        self._stance = torch.compiler.set_stance("force_eager")
        self._tracker = ModuleTracker()
        self._tracker.__enter__()
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._name_modules)
        self._mode = Recording()
        self._mode.__enter__()
        self.new_step()

    def new_step(self) -> None:
        """Begin another step; the time line is that of the last."""
        self._line, self._began = [], time.perf_counter()

    def stop(self) -> None:
        """Record no more."""
        self._mode.__exit__(None, None, None)
        self._hook.remove()
        self._tracker.__exit__(None, None, None)
        self._stance.__exit__(None, None, None)

    def _name_modules(self, module: Any, _: object) -> None:
        """Note the class of each layer of a model that is called for the first time."""
        root = type(module).__name__
        if root in self._kinds:
            return
        for name, layer in module.named_modules():
            self._kinds.setdefault(f"{root}.{name}" if name else root, type(layer).__name__)

    def _record(
        self, func: Any, args: Any, kwargs: Any, result: Any, begin: float, elapsed_s: float
    ) -> None:
        torch = self._torch
        inputs = tensors_in(torch, (args, list(kwargs.values())))
        outputs = tensors_in(torch, (result,))
        if any(not tensor.is_cpu for tensor in (*inputs, *outputs)):
            return
        if any(tensor.is_nested for tensor in (*inputs, *outputs)):
            return  # it has no shape
        layer = max(
            (name for name in self._tracker.parents if name != "Global"), key=len, default=""
        )
        shapes = tuple(tuple(map(int, tensor.shape)) for tensor in inputs[:NUM_SHAPES])
        first = (inputs or outputs or [None])[0]
        dtype = "" if first is None else str(first.dtype).replace("torch.", "")
        is_known = all(is_plain(torch, tensor) for tensor in (*inputs, *outputs))
        traffic = traffic_of(torch, func, args, kwargs, result) if is_known else Traffic()
        name = str(func._schema.name)
        flops = self._count_flops(func, args, kwargs, result)
        # calls with tensors of the same shapes may differ in what else they are given
        key = (name, shapes, dtype, self.phase, layer, flops, traffic.num_bytes)
        entry = self._records.get(key)
        if entry is None:
            short = name.partition("::")[2]
            entry = self._records[key] = {
                "number": len(self._records), "name": short, "shapes": shapes, "dtype": dtype,
                "phase": self.phase, "layer": layer, "times": [], "flops": flops,
                "bytes": traffic.num_bytes, "numbers": traffic.num_elements,
                "channels_last": _is_channels_last(inputs),
                "elementwise": torch.Tag.pointwise in func.tags,
                "computed_in": self._computed_in(short, dtype) if flops else "",
            }  # fmt: skip
        entry["times"].append(elapsed_s)
        self._line.append((entry["number"], begin - self._began, elapsed_s))
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
        except Exception as error:  # a formula of the user's is no reason to end the script
            self._uncounted[name] = f"{type(error).__name__}: {error}"
            return 0

    def _computed_in(self, name: str, dtype: str) -> str:
        """Return the type that float32 may be computed in, where the script allows fewer bits."""
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
            size = sample & 0x7FFFFFFF
            self._num_denormal += int(((size > 0) & (size < 0x00800000)).sum())
        self._num_sampled += sample.numel()

    def document(self) -> dict[str, Any]:
        """Return all operators, and the classes of layers by name."""
        return {
            "operators": [_summed(entry) for entry in self._records.values()],
            "kinds": self._kinds,
            "line": self._line,
            "tiny": self._num_denormal / self._num_sampled if self._num_sampled else 0.0,
            "uncounted": self._uncounted,
        }


def _summed(entry: dict[str, Any]) -> dict[str, Any]:
    """Return an operator with the time of all calls: as many times the median one, since now and
    then another program gets the CPU."""
    times = sorted(entry["times"])
    rest = {name: value for name, value in entry.items() if name not in {"times", "number"}}
    return {**rest, "calls": len(times), "seconds": times[len(times) // 2] * len(times)}


def _is_channels_last(inputs: list[Any]) -> bool:
    """Return whether the first tensor is a batch of images with their channels last."""
    for tensor in inputs[:1]:
        if tensor.dim() == 4 and tensor.size(1) > 1 and str(tensor.layout) == "torch.strided":
            return bool(tensor.stride(1) == 1)
    return False
