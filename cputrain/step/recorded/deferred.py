"""Tensors whose numbers are computed when the script reads them, or calls `backward`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.autograd import Function

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.step.recorded.path import Ending
    from cputrain.step.recorded.region import Region

MISSING = (
    "backward is called through a result of the step before, such as a hidden state, for the first "
    "time. cputrain had computed it without its graph. Run the script with --record-step off."
)
"""What is raised where a graph is asked for that no step had needed before."""

_without_overrides = torch._C.DisableTorchFunctionSubclass
_set_versions = torch._C._autograd._unsafe_set_version_counter


class DeferredTensor(Tensor):
    """A tensor of a recorded region: its memory is there, its numbers may not be yet.

    Every function of torch that is called with one goes to the recorder. A function in C that is
    called otherwise reads the memory.
    """

    region: Region | None
    """The region that computes it, while that is open."""

    position: int
    """Its position among the results of the region's calls."""

    eager: Tensor | None
    """The tensor that the script would have, with its graph; None while it is not computed."""

    grad_name: str
    """Name of the type of its grad_fn; "" if it needs no gradient."""

    ending: Ending | None = None
    """The ending of its region, if `backward` has left a part of its graph unused."""

    call: Callable[..., Any]
    """What the recorder does with a function of torch; an attribute of the class."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Have the recorder call a function of torch."""
        return cls.call(func, args, kwargs or {})


def make_deferred(
    region: Region, index: int, shape: Any, stride: Any, dtype: torch.dtype, grad_name: str
) -> DeferredTensor:
    """Return a tensor of this layout whose numbers are not there yet."""
    memory = torch.empty_strided(shape, stride, dtype=dtype, device="cpu")
    tensor: DeferredTensor = Tensor._make_subclass(DeferredTensor, memory, False)
    tensor.region, tensor.position, tensor.eager, tensor.grad_name = region, index, None, grad_name
    return tensor


def wrap(region: Region, index: int, real: Tensor) -> DeferredTensor:
    """Return a tensor for one that has been computed, with the same memory."""
    tensor: DeferredTensor = real.as_subclass(DeferredTensor)
    tensor.region, tensor.position, tensor.eager = region, index, real
    tensor.grad_name = grad_name_of(real)
    return tensor


def grad_name_of(tensor: Tensor) -> str:
    """Return the name of the type of a tensor's grad_fn; "" if it needs no gradient."""
    return type(tensor.grad_fn).__name__ if tensor.requires_grad else ""


def become(tensor: DeferredTensor, real: Tensor) -> None:
    """Give a deferred tensor its numbers and its graph."""
    tensor.eager = real
    with _without_overrides(), torch.enable_grad():
        tensor.copy_(real)


def fill(tensor: DeferredTensor, value: Tensor) -> None:
    """Give a deferred tensor its numbers; its graph is gone, as after `backward`."""
    tensor.region = None
    set_numbers(tensor, value)


def set_numbers(tensor: DeferredTensor, value: Tensor) -> None:
    """Give a deferred tensor its numbers, as if it had had them from the beginning."""
    with _without_overrides():
        tensor.copy_(value)
        _set_versions((tensor,), (0,))


def value_of(tensor: DeferredTensor) -> Tensor:
    """Return the numbers of a tensor, which are there, without a graph."""
    with _without_overrides():
        return tensor.as_subclass(Tensor)


def real_of(tensor: DeferredTensor) -> Tensor:
    """Return the tensor that the script would have."""
    if tensor.region is not None and tensor.region.is_pending:  # it is read in another thread
        tensor.region.compute()
    if tensor.ending is not None and torch.is_grad_enabled():
        tensor.ending.is_graph_needed = True
    if tensor.eager is None:
        value = value_of(tensor)
        kind = _UsedGraph if tensor.ending is None else _MissingGraph
        tensor.eager = _with_graph(value, kind, tensor.grad_name) if tensor.grad_name else value
    return tensor.eager


def _with_graph(value: Tensor, kind: type[Function], grad_name: str) -> Tensor:
    function: Any = _functions.get((kind, grad_name))
    if function is None:
        function = _functions[kind, grad_name] = type(kind.__name__, (kind,), {})
        function._backward_cls.__name__ = grad_name
    with torch.enable_grad():
        result: Tensor = function.apply(value, torch.ones((), requires_grad=True, device="cpu"))
    return result


class _UsedGraph(Function):
    """A graph through which `backward` has been called."""

    @staticmethod
    def forward(_ctx: Any, value: Tensor, _anchor: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        anchor = torch.ones((), requires_grad=True, device="cpu")
        with torch.enable_grad():
            used = anchor * anchor
        used.backward()  # type: ignore[no-untyped-call]
        used.backward()  # type: ignore[no-untyped-call]  # raises what torch does


class _MissingGraph(_UsedGraph):
    """A graph that `backward` would have left, of a result that was computed without it."""

    @staticmethod
    def backward(_ctx: Any, *_gradients: Any) -> Any:
        raise RuntimeError(MISSING)


_functions: dict[tuple[type[Function], str], Any] = {}
