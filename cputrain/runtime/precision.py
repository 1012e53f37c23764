"""bf16 where the user allowed it: inside oneDNN's kernels, or by autocast around whole models."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from operator import setitem
from types import SimpleNamespace

from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.runtime.patching import pass_by, uncounted, without_ours
from cputrain.runtime.root_forward import outermost

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any

POLICY = "precision"


class Kernels:
    """float32 in and out, bf16 inside matmuls and convolutions."""

    def __init__(self, torch: ModuleType) -> None:
        self._parts: list[tuple[Any, str]] = []
        for name in ("matmul", "conv"):
            part: Any = getattr(torch.backends.mkldnn, name, None)  # torch 2.9 and later
            if hasattr(part, "fp32_precision"):
                self._parts.append((part, part.fp32_precision))
                part.fp32_precision = "bf16"

    def describe(self) -> str:
        return "bf16 inside matmuls and convolutions" if self._parts else ""

    def undo(self) -> None:
        for part, before in self._parts:
            part.fp32_precision = before


class Autocast:
    """bf16 within each model's call. What it returns is float32, as the script expects.

    Weights are cast once for each call, and again for the next: an optimizer may have been between.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._num_calls = 0
        self._refusals: dict[str, None] = {}
        self._hooks = ModuleHooks(torch)
        self._functions = Float32Functions(torch)
        self._outermost = outermost(torch)
        self._outermost.add(self._around)

    def _around(self, call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        torch = self._torch
        param = next(model.parameters(), None)
        if param is None or not param.is_cpu or torch.is_autocast_enabled("cpu"):
            return call(model, *args, **options)
        reason = self._why_not(model, param)
        if reason:
            self._refusals[f"{type(model).__name__} left without autocast: {reason}"] = None
            return call(model, *args, **options)
        self._num_calls += 1
        with self._functions.active(), torch.autocast("cpu", torch.bfloat16):
            output = call(model, *args, **options)
        return self._widened(output)

    def _why_not(self, model: Any, param: Any) -> str:
        """Return why autocast would fail in this model, or change more than digits."""
        torch = self._torch
        quantization = torch.ao.quantization
        if param.dtype is not torch.float32:
            return f"its parameters are {param.dtype}"
        # torch.func differentiates through the casts, and meets gradients of another dtype
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return "torch.func transforms it"
        saving = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if saving is not None and not _is_of_torch(saving[0]):
            return "a hook of the script sees what it saves for its backward"
        # what a hook takes along goes where float32 is expected: to NumPy, into a loss
        hooked = self._hooks.find(model)
        if hooked:
            return f"{hooked}, which would see bf16"
        for module in model.modules():
            # their kernels take float32 only
            if isinstance(module, quantization.FakeQuantizeBase | quantization.ObserverBase):
                return "it simulates quantization"
        return ""

    def _widened(self, made: Any) -> Any:
        """float32 in the place of bf16; the very same object where there is none to replace."""
        tree = self._torch.utils._pytree
        leaves, shape = tree.tree_flatten(made)
        wider = [self._widened_leaf(leaf) for leaf in leaves]
        if all(new is old for new, old in zip(wider, leaves, strict=True)):
            return made
        return tree.tree_unflatten(wider, shape)

    def _widened_leaf(self, leaf: Any) -> Any:
        torch = self._torch
        if isinstance(leaf, torch.Tensor):
            return leaf.float() if leaf.dtype is torch.bfloat16 else leaf
        parts, put = _parts(leaf)
        wider = {
            name: new for name, part in parts.items() if (new := self._widened(part)) is not part
        }
        if not wider:
            return leaf
        changed = copy(leaf)
        for name, new in wider.items():
            put(changed, name, new)
        return changed

    def describe(self) -> str:
        applied = ["bf16 autocast around models"] if self._num_calls else []
        return ", ".join([*applied, *self._refusals])

    def undo(self) -> None:
        self._outermost.remove(self._around)
        self._functions.undo()


class Float32Functions:
    """Computes the script's own autograd functions in float32 within the autocast of ours.

    Autocast casts within a function's forward and not within its backward, which then meets
    tensors of two dtypes: `torch.amp.custom_fwd` exists for that, and a script that never asked
    for autocast does not have it.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._kind: Any = torch.autograd.Function
        self._own = self._kind.__dict__["apply"]
        self._num_active = 0
        apply_own = self._own.__func__

        @wraps(apply_own)
        def apply(cls: Any, *args: Any, **options: Any) -> Any:
            if torch.compiler.is_compiling():
                return apply_own(cls, *args, **options)
            try:
                if not self._casts(cls):
                    return apply_own(cls, *args, **options)
                wide = torch.utils._pytree.tree_map_only(torch.Tensor, self._widen, args)
                with torch.autocast("cpu", enabled=False):
                    return apply_own(cls, *wide, **options)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise

        pass_by(uncounted(apply).__code__)
        self._ours: Any = classmethod(apply)
        self._kind.apply = self._ours

    @contextmanager
    def active(self) -> Iterator[None]:
        """Do so meanwhile, in threads of a divided batch as well."""
        self._num_active += 1
        try:
            yield
        finally:
            self._num_active -= 1

    def _casts(self, function: Any) -> bool:
        """Tell whether the function is the script's, and is not meant for autocast.

        Those of torch and ours run parts of a model, or pass tensors on; per-sample gradients are
        like the script's own.
        """
        return (
            self._num_active > 0
            and self._torch.is_autocast_enabled("cpu")
            and (
                not function.__module__.startswith(("torch.", "cputrain."))
                or function.__module__.startswith("torch.nn.utils._expanded_weights.")
            )
            and getattr(getattr(function.forward, "__code__", None), "co_name", "")
            != "decorate_fwd"
        )

    def _widen(self, tensor: Any) -> Any:
        return tensor.float() if tensor.dtype is self._torch.bfloat16 else tensor

    def undo(self) -> None:
        if self._kind.__dict__.get("apply") is self._ours:
            self._kind.apply = self._own


def _is_of_torch(hook: Any) -> bool:
    """Tell whether a hook on saved tensors is torch's own, as that of a checkpoint is."""
    return str(getattr(hook, "__module__", "")).startswith("torch.")


def _parts(made: Any) -> tuple[dict[Any, Any], Callable[[Any, Any, Any], None]]:
    """What an output is made of that torch takes for one thing, and how to replace a part."""
    if isinstance(made, MutableMapping):
        return dict(made), setitem
    if is_dataclass(made) and not isinstance(made, type):
        # a frozen one, too
        return {one.name: getattr(made, one.name) for one in fields(made)}, object.__setattr__
    if isinstance(made, SimpleNamespace):
        return vars(made), setattr
    return {}, setitem


def apply(torch: ModuleType, value: object) -> Kernels | Autocast | None:
    """Start computing with fewer bits."""
    return Kernels(torch) if value == "kernels" else Autocast(torch) if value == "bf16" else None
