"""What would notice that tensors lie channels last, taught not to.

Each is a part of torch that looks at the order of memory: views, as scripts write them; random
numbers, which are drawn in that order; fused optimizers, which walk several tensors at once; what
is saved, and read where nobody lays anything out.
"""

from __future__ import annotations

from functools import wraps

from cputrain.runtime.patching import Patch, pass_by, uncounted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType
    from typing import Any, Protocol

    class _Change(Protocol):
        """What can be undone."""

        def undo(self) -> None:
            """Put torch's own back."""


class Unnoticed:
    """The functions, exchanged."""

    def __init__(self, torch: ModuleType, straighten: Callable[[Any], bool]) -> None:
        self._changes: list[_Change] = [
            _ForgivingView(torch, straighten),
            *_dropouts(torch),
            *(_drawn_alike(torch, name) for name in ("rand_like", "randn_like")),
            _pickled(torch),
            _OptimizersAlike(torch),
        ]

    def undo(self) -> None:
        for one in reversed(self._changes):
            one.undo()


def order_of(torch: ModuleType, tensor: Any) -> Any:
    """The order of a tensor that lies channels last, and not as it is counted; or nothing."""
    order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(tensor.dim())
    if (
        order is None
        or tensor.layout is not torch.strided
        or tensor.is_contiguous()
        or not tensor.is_contiguous(memory_format=order)
    ):
        return None
    return order


def as_counted(torch: ModuleType, values: Any) -> Any:
    """The same, but each tensor that lies channels last lies as it is counted."""

    def laid_out(tensor: Any) -> Any:
        return tensor if order_of(torch, tensor) is None else tensor.contiguous()

    return torch.utils._pytree.tree_map_only(torch.Tensor, laid_out, values)


class _ForgivingView:
    """`x.view(len(x), -1)` behind a convolution, as scripts write it.

    Channels last, that is no view of the same memory, and torch would raise. It becomes a copy, as
    `reshape` makes it, where `straighten` cannot lay the tensor itself out.
    """

    def __init__(self, torch: ModuleType, straighten: Callable[[Any], bool]) -> None:
        kind: Any = torch.Tensor
        own = kind.view
        is_tracing = torch.jit.is_tracing

        @wraps(own)
        def view(self: Any, *shape: Any, **options: Any) -> Any:
            if is_tracing() and order_of(torch, self) is not None:
                return own(self.contiguous(), *shape, **options)  # an error ends the trace
            try:
                return own(self, *shape, **options)
            except (RuntimeError, ValueError) as error:  # the latter for a tensor without memory
                if self.is_contiguous():  # then it is about something else
                    error.__traceback__ = None  # nothing but this frame
                    raise
                return own(self if straighten(self) else self.contiguous(), *shape, **options)

        self._kind, self._ours = kind, view
        pass_by(uncounted(view).__code__)
        kind.view = view

    def undo(self) -> None:
        if self._kind.__dict__.get("view") is self._ours:
            del self._kind.view  # what is behind is the base's own


def _dropouts(torch: ModuleType) -> Iterator[Patch]:
    place: Any = torch._VF

    def factors(tensor: Any, p: float, train: bool) -> Any:
        """What a dropout multiplies by; nothing where torch's own draws in the same order."""
        if not train or not 0 < p < 1 or _draws_by_itself(torch, tensor):
            return None
        noise = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        order = order_of(torch, tensor)
        return noise.bernoulli_(1 - p).div_(1 - p).contiguous(memory_format=order)

    def exchanged(name: str, multiply: Callable[[Any, Any], Any]) -> Patch:
        own = getattr(place, name)

        @wraps(own)
        def dropout(tensor: Any, p: float, train: bool) -> Any:
            found = factors(tensor, p, train)
            return own(tensor, p, train) if found is None else multiply(tensor, found)

        return Patch(place, name, dropout)

    yield exchanged("dropout", lambda tensor, found: tensor * found)
    yield exchanged("dropout_", lambda tensor, found: tensor.mul_(found))


def _drawn_alike(torch: ModuleType, name: str) -> Patch:
    own = getattr(torch, name)

    @wraps(own)
    def drawn(*args: Any, **options: Any) -> Any:
        tensor = args[0] if args else options.get("input")
        if "memory_format" not in options and not _draws_by_itself(torch, tensor):
            options["memory_format"] = torch.contiguous_format
        return own(*args, **options)

    return Patch(torch, name, drawn)


def _draws_by_itself(torch: ModuleType, tensor: Any) -> bool:
    """In the order of plain python; under vmap it is vmap that draws."""
    return (
        not isinstance(tensor, torch.Tensor)
        or order_of(torch, tensor) is None
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def _pickled(torch: ModuleType) -> Patch:
    """torch.save and pickle: where the file is read, a view may be a view again."""
    kind: Any = torch.Tensor
    own = kind.__reduce_ex__

    @wraps(own)
    def reduce(self: Any, protocol: Any) -> Any:
        if type(self) is kind and not vars(self) and order_of(torch, self) is not None:
            return own(self.detach().contiguous().requires_grad_(self.requires_grad), protocol)
        return own(self, protocol)

    return Patch(kind, "__reduce_ex__", reduce)


class _OptimizersAlike:
    """What belongs to a weight lies as it does.

    Gradients that a script sets, and states that it loads, lie as they are counted; torch's fused
    kernels look at no strides, and would update wrongly and in silence.
    """

    def __init__(self, torch: ModuleType) -> None:
        from torch.optim.optimizer import register_optimizer_step_pre_hook

        self._torch = torch
        self._hook = register_optimizer_step_pre_hook(self._before)
        pass_by(_OptimizersAlike._before.__code__)

    def _before(self, optimizer: Any, *_: object) -> None:
        torch = self._torch
        if torch.compiler.is_compiling():
            return
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.dim() in (4, 5) and weight.layout is torch.strided:
                    order = order_of(torch, weight) or torch.contiguous_format
                    state = optimizer.state.get(weight) or {}
                    for other in (weight.grad, *state.values()):
                        if (
                            isinstance(other, torch.Tensor)
                            and other.layout is torch.strided
                            and other.size() == weight.size()
                            and not other.is_contiguous(memory_format=order)
                        ):
                            other.data = other.data.contiguous(memory_format=order)

    def undo(self) -> None:
        self._hook.remove()


def let_safetensors_save(safetensors: ModuleType) -> None:
    """Have it lay out what is channels last, as it does itself when it is given a model."""
    import torch

    def saving(own: Any) -> Any:
        @wraps(own)
        def save(tensors: Any, *args: Any, **options: Any) -> Any:
            return own(as_counted(torch, tensors), *args, **options)

        return save

    for name in ("save", "save_file"):
        setattr(safetensors, name, saving(getattr(safetensors, name)))
