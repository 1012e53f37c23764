"""Compute in bf16 where the user allowed it: in oneDNN's kernels, or by autocast around models."""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import contextmanager
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from operator import setitem
from types import SimpleNamespace

from cputrain.runtime.module_hooks import ModuleHooks
from cputrain.runtime.patching import skip_frames, uncounted, without_ours
from cputrain.runtime.root_forward import root_forward_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any


class KernelPrecision:
    """Reduced precision of oneDNN: float32 inputs and outputs, bf16 in matmuls and convolutions."""

    def __init__(self, torch: ModuleType) -> None:
        self._members: list[tuple[Any, str]] = []
        for name in ("matmul", "conv"):
            member: Any = getattr(torch.backends.mkldnn, name, None)  # torch 2.9 and later
            if hasattr(member, "fp32_precision"):
                self._members.append((member, member.fp32_precision))
                member.fp32_precision = "bf16"

    def describe(self) -> str:
        return "bf16 inside matmuls and convolutions" if self._members else ""

    def undo(self) -> None:
        for member, previous in self._members:
            member.fp32_precision = previous


class Autocast:
    """bf16 autocast around each root module call; outputs are cast back to float32.

    Weights are cast anew in each call, as an optimizer may have updated them since.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._num_calls = 0
        self._refusals: dict[str, None] = {}
        self._hooks = ModuleHooks(torch)
        self._functions = Float32Functions(torch)
        self._root_forward = root_forward_of(torch)
        self._root_forward.add(self._intercept)

    def _intercept(self, call: Callable[..., Any], model: Any, /, *args: Any, **kwargs: Any) -> Any:
        torch = self._torch
        param = next(model.parameters(), None)
        if param is None or not param.is_cpu or torch.is_autocast_enabled("cpu"):
            return call(model, *args, **kwargs)
        reason = self._refusal(model, param)
        if reason:
            self._refusals[f"{type(model).__name__} left without autocast: {reason}"] = None
            return call(model, *args, **kwargs)
        self._num_calls += 1
        with self._functions.active(), torch.autocast("cpu", torch.bfloat16):
            output = call(model, *args, **kwargs)
        return self._to_float32(output)

    def _refusal(self, model: Any, param: Any) -> str:
        """Return why autocast would fail in a model, or change more than rounding; "" if not."""
        torch = self._torch
        quantization = torch.ao.quantization
        if param.dtype is not torch.float32:
            return f"its parameters are {param.dtype}"
        # torch.func differentiates through the casts, and gets gradients of another dtype
        if torch._C._functorch.peek_interpreter_stack() is not None:
            return "torch.func transforms it"
        saved_hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if saved_hooks is not None and not _is_of_torch(saved_hooks[0]):
            return "a hook of the script sees what it saves for its backward"
        # hooks pass what they see to code that expects float32: NumPy, a loss
        hook = self._hooks.find(model)
        if hook:
            return f"{hook}, which would see bf16"
        for module in model.modules():
            # their kernels take float32 only
            if isinstance(module, quantization.FakeQuantizeBase | quantization.ObserverBase):
                return "it simulates quantization"
        return ""

    def _to_float32(self, output: Any) -> Any:
        """Cast bf16 tensors of an output to float32; return the same object if there is none."""
        tree = self._torch.utils._pytree
        leaves, spec = tree.tree_flatten(output)
        casted = [self._leaf_to_float32(leaf) for leaf in leaves]
        if all(cast is before for cast, before in zip(casted, leaves, strict=True)):
            return output
        return tree.tree_unflatten(casted, spec)

    def _leaf_to_float32(self, leaf: Any) -> Any:
        torch = self._torch
        if isinstance(leaf, torch.Tensor):
            return leaf.float() if leaf.dtype is torch.bfloat16 else leaf
        members, setter = _members(leaf)
        casted = {
            name: cast
            for name, member in members.items()
            if (cast := self._to_float32(member)) is not member
        }
        if not casted:
            return leaf
        changed = copy(leaf)
        for name, cast in casted.items():
            setter(changed, name, cast)
        return changed

    def describe(self) -> str:
        applied = ["bf16 autocast around models"] if self._num_calls else []
        return ", ".join([*applied, *self._refusals])

    def undo(self) -> None:
        self._root_forward.remove(self._intercept)
        self._functions.undo()


class Float32Functions:
    """Patch of autograd.Function.apply: run the script's functions in float32 under our autocast.

    Autocast applies in a function's forward but not in its backward, which then gets tensors of two
    dtypes. `torch.amp.custom_fwd` solves this, but a script that does not use autocast lacks it.
    """

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._function_class: Any = torch.autograd.Function
        self._original = self._function_class.__dict__["apply"]
        self._num_active = 0
        original_apply = self._original.__func__

        @wraps(original_apply)
        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original_apply(cls, *args, **kwargs)
            try:
                if not self._should_disable(cls):
                    return original_apply(cls, *args, **kwargs)
                float32_args = torch.utils._pytree.tree_map_only(torch.Tensor, self._cast, args)
                with torch.autocast("cpu", enabled=False):
                    return original_apply(cls, *float32_args, **kwargs)
            except BaseException as error:
                error.__traceback__ = without_ours(error)
                raise

        skip_frames(uncounted(apply).__code__)
        self._replacement: Any = classmethod(apply)
        self._function_class.apply = self._replacement

    @contextmanager
    def active(self) -> Iterator[None]:
        """Apply the patch for the duration of the context, in the threads of all replicas."""
        self._num_active += 1
        try:
            yield
        finally:
            self._num_active -= 1

    def _should_disable(self, function: Any) -> bool:
        """Return whether a function is the script's, and not decorated for autocast.

        Functions of torch and of this package run modules or pass tensors on, and are left alone;
        those of per-sample gradients are treated as the script's.
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

    def _cast(self, tensor: Any) -> Any:
        return tensor.float() if tensor.dtype is self._torch.bfloat16 else tensor

    def undo(self) -> None:
        if self._function_class.__dict__.get("apply") is self._replacement:
            self._function_class.apply = self._original


def _is_of_torch(hook: Any) -> bool:
    """Return whether a saved-tensor hook is torch's own, as that of a checkpoint is."""
    return str(getattr(hook, "__module__", "")).startswith("torch.")


def _members(output: Any) -> tuple[dict[Any, Any], Callable[[Any, Any, Any], None]]:
    """Return the members of an output that pytree takes for a leaf, and a setter for them."""
    if isinstance(output, MutableMapping):
        return dict(output), setitem
    if is_dataclass(output) and not isinstance(output, type):
        # object.__setattr__ sets fields of frozen dataclasses too
        return {
            field.name: getattr(output, field.name) for field in fields(output)
        }, object.__setattr__
    if isinstance(output, SimpleNamespace):
        return vars(output), setattr
    return {}, setitem
