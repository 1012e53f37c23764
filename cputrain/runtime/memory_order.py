"""Patch the functions of torch whose results depend on whether tensors are channels_last.

These are: Tensor.view, which raises; dropout and rand_like, which draw random numbers in memory
order; fused optimizers, which ignore strides; pickle and torch.save, whose files may be loaded
without cputrain.
"""

from __future__ import annotations

from functools import wraps

from cputrain.runtime.patching import Patch, skip_frames, uncounted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any, Protocol

    class _Change(Protocol):
        """A reversible change."""

        def undo(self) -> None:
            """Restore torch's function."""


NUM_DROPOUT_ARGUMENTS = 3
"""Number of arguments with which torch.nn.functional calls the operators."""


class MemoryOrderPatches:
    """All of these patches.

    Args:
        straighten: Makes a converted weight or its gradient contiguous in place, if the tensor is
            one, and returns whether it was.
    """

    def __init__(self, torch: ModuleType, restore_contiguous: Callable[[Any], bool]) -> None:
        self._changes: list[_Change] = [
            _ViewPatch(torch, restore_contiguous),
            *_patch_dropouts(torch),
            *_patch_rand_like(torch, "rand_like"),
            *_patch_rand_like(torch, "randn_like"),
            _patch_reduce(torch),
            _OptimizerFormats(torch),
        ]

    def undo(self) -> None:
        for change in reversed(self._changes):
            change.undo()


def channels_last_format(torch: ModuleType, tensor: Any) -> Any:
    """Return the channels_last format of a tensor; None if it is contiguous or has another one."""
    memory_format = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if (
        memory_format is None
        or tensor.layout is not torch.strided
        or tensor.is_contiguous()
        or not tensor.is_contiguous(memory_format=memory_format)
    ):
        return None
    return memory_format


def to_contiguous(torch: ModuleType, values: Any) -> Any:
    """Return a pytree with each channels_last tensor made contiguous."""

    def convert(tensor: Any) -> Any:
        return tensor if channels_last_format(torch, tensor) is None else tensor.contiguous()

    return torch.utils._pytree.tree_map_only(torch.Tensor, convert, values)


class _ViewPatch:
    """Patch of Tensor.view for calls such as `x.view(len(x), -1)` after a convolution.

    For a channels_last tensor that is no view of the same memory, and torch would raise. The patch
    returns a copy, as `reshape` does, unless `straighten` can make the tensor itself contiguous.
    """

    def __init__(self, torch: ModuleType, restore_contiguous: Callable[[Any], bool]) -> None:
        tensor_class: Any = torch.Tensor
        original = tensor_class.view
        is_tracing = torch.jit.is_tracing

        @wraps(original)
        def view(self: Any, *shape: Any, **kwargs: Any) -> Any:
            if is_tracing() and channels_last_format(torch, self) is not None:
                return original(self.contiguous(), *shape, **kwargs)  # an error would end the trace
            try:
                return original(self, *shape, **kwargs)
            except (RuntimeError, ValueError) as error:  # ValueError for a tensor without storage
                if self.is_contiguous():  # then the error has another cause
                    error.__traceback__ = None  # it holds this frame only
                    raise
                return original(
                    self if restore_contiguous(self) else self.contiguous(), *shape, **kwargs
                )

        self._tensor_class, self._replacement = tensor_class, view
        skip_frames(uncounted(view).__code__)
        tensor_class.view = view

    def undo(self) -> None:
        if self._tensor_class.__dict__.get("view") is self._replacement:
            del self._tensor_class.view  # the base class has the original


def _patch_dropouts(torch: ModuleType) -> Iterator[Patch]:
    from cputrain.runtime.replaced_builtin import replace

    def dropout_mask(original: Any, tensor: Any, p: float, train: bool) -> Any:
        """Return a dropout's mask over 1 - p; None if torch draws it in the same order."""
        if not train or not 0 < p < 1 or _has_default_order(torch, tensor):
            return None
        ones = torch.ones(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        memory_format = channels_last_format(torch, tensor)
        return original(ones, p, train).contiguous(memory_format=memory_format)

    def patch(name: str, multiply: Callable[[Any, Any], Any]) -> list[Patch]:
        original = getattr(torch, name)

        def compute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if len(args) != NUM_DROPOUT_ARGUMENTS or kwargs:
                return None
            mask = dropout_mask(original, *args)
            return None if mask is None else multiply(args[0], mask)

        return replace((torch, torch._VF), name, compute)

    yield from patch("dropout", lambda tensor, mask: tensor * mask)
    yield from patch("dropout_", lambda tensor, mask: tensor.mul_(mask))


def _patch_rand_like(torch: ModuleType, name: str) -> list[Patch]:
    from cputrain.runtime.replaced_builtin import replace

    original = getattr(torch, name)

    def compute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0] if args else kwargs.get("input")
        if "memory_format" in kwargs or _has_default_order(torch, tensor):
            return None
        return original(*args, memory_format=torch.contiguous_format, **kwargs)

    return replace([torch], name, compute)


def _has_default_order(torch: ModuleType, tensor: Any) -> bool:
    """Return whether torch draws random numbers for a tensor as without channels_last.

    Under vmap, vmap's own randomness applies.
    """
    return (
        not isinstance(tensor, torch.Tensor)
        or channels_last_format(torch, tensor) is None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _patch_reduce(torch: ModuleType) -> Patch:
    """Pickle channels_last tensors as contiguous: scripts that load them may call view."""
    tensor_class: Any = torch.Tensor
    original = tensor_class.__reduce_ex__

    @wraps(original)
    def reduce(self: Any, protocol: Any) -> Any:
        if (
            type(self) is tensor_class
            and not vars(self)
            and channels_last_format(torch, self) is not None
        ):
            return original(self.detach().contiguous().requires_grad_(self.requires_grad), protocol)
        return original(self, protocol)

    return Patch(tensor_class, "__reduce_ex__", reduce)


class _OptimizerFormats:
    """Give gradients and optimizer states the memory format of their weight before each step.

    Gradients that a script assigns, and states that it loads, are contiguous; torch's fused kernels
    ignore strides and would silently update wrongly.
    """

    def __init__(self, torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        from cputrain.runtime.optimizer_states import EightBitTensor

        self._torch, self._eight_bit = torch, EightBitTensor
        self._hook = register_optimizer_step_pre_hook(self._before_step)
        skip_frames(_OptimizerFormats._before_step.__code__)

    def _before_step(self, optimizer: Any, *_: object) -> None:
        torch = self._torch
        if torch.compiler.is_compiling():
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.dim() in (4, 5) and weight.layout is torch.strided:
                    memory_format = channels_last_format(torch, weight) or torch.contiguous_format
                    state = optimizer.state.get(weight) or {}
                    for tensor in (weight.grad, *state.values()):
                        if (
                            isinstance(tensor, torch.Tensor)
                            and not isinstance(tensor, self._eight_bit)
                            and tensor.layout is torch.strided
                            and tensor.size() == weight.size()
                            and not tensor.is_contiguous(memory_format=memory_format)
                        ):
                            tensor.data = tensor.data.contiguous(memory_format=memory_format)

    def undo(self) -> None:
        self._hook.remove()


def patch_safetensors(safetensors: ModuleType) -> None:
    """Have safetensors save channels_last tensors as contiguous, as its save_model does."""
    import torch

    def with_contiguous(original: Any) -> Any:
        @wraps(original)
        def save(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            return original(to_contiguous(torch, tensors), *args, **kwargs)

        return save

    for name in ("save", "save_file"):
        setattr(safetensors, name, with_contiguous(getattr(safetensors, name)))
