"""Arguments and results of recorded calls, described to be compared and made again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from cputrain.step.batches import layout_of
from cputrain.step.recorded.deferred import DeferredTensor, grad_name_of, real_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from cputrain.step.recorded.region import Region

PLAIN = frozenset({
    bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device,
    torch.memory_format, torch.layout,
})  # fmt: skip
"""Types of arguments that are compared by their values."""


class UnrecordableError(Exception):
    """A call cannot be recorded; the message says why."""


class Batch(NamedTuple):
    """An argument that is a tensor of the batch, or another tensor of the script."""

    number: int
    layout: tuple[Any, ...]
    tag: str = "batch"  # named tuples of two types can be equal


class CallResult(NamedTuple):
    """An argument that is a result of an earlier call."""

    position: int
    tag: str = "result"


class Weight(NamedTuple):
    """An argument that is a parameter."""

    identity: int
    tag: str = "weight"


class Plain(NamedTuple):
    """An argument that is a number, or another value without tensors."""

    kind: type
    value: Any
    tag: str = "plain"


class Container(NamedTuple):
    """A tuple, list, dictionary, slice or size, and what is in it."""

    kind: type
    keys: tuple[Any, ...]
    members: tuple[Any, ...]


def describe(value: Any, region: Region) -> Any:
    """Return the description of an argument, and add its tensors to the region.

    Raises UnrecordableError.
    """
    kind = type(value)
    if kind is DeferredTensor:
        if value.region is region:
            return CallResult(value.position)
        return _describe_tensor(real_of(value), region)
    if kind is Tensor or kind is nn.Parameter:
        return _describe_tensor(value, region)
    if kind in PLAIN:
        if value == 0 and str(value)[0] == "-":
            return Plain(kind, value, "negative zero")
        return Plain(kind, value)
    if kind is tuple or kind is list or kind is torch.Size:
        return Container(kind, (), tuple([describe(member, region) for member in value]))
    if kind is dict:
        members = tuple([describe(member, region) for member in value.values()])
        return Container(kind, tuple(value), members)
    if kind is slice:
        parts = (value.start, value.stop, value.step)
        return Container(kind, (), tuple([describe(part, region) for part in parts]))
    raise UnrecordableError(f"an argument is a {kind.__name__}")


def _describe_tensor(tensor: Tensor, region: Region) -> Batch | Weight:
    if tensor.requires_grad:
        if type(tensor) is not nn.Parameter:
            raise UnrecordableError("a tensor that needs a gradient comes from outside of models")
        region.weights[id(tensor)] = tensor
        return Weight(id(tensor))
    batch = region.batch
    for number, known in enumerate(batch):
        if known is tensor:
            return Batch(number, layout_of(tensor))
    if tensor.layout is not torch.strided or not tensor.is_cpu:
        raise UnrecordableError("a tensor is not dense and on the CPU")
    batch.append(tensor)
    region.watch((tensor,))
    return Batch(len(batch) - 1, layout_of(tensor))


def restore(
    description: Any, batch: Sequence[Tensor], results: Sequence[Tensor], weights: dict[int, Tensor]
) -> Any:
    """Return an argument with other tensors."""
    kind = type(description)
    if kind is Plain:
        return description.value
    if kind is Batch:
        return batch[description.number]
    if kind is CallResult:
        return results[description.position]
    if kind is Weight:
        return weights[description.identity]
    members = [restore(member, batch, results, weights) for member in description.members]
    if description.kind is dict:
        return dict(zip(description.keys, members, strict=True))
    return slice(*members) if description.kind is slice else description.kind(members)


class Layout(NamedTuple):
    """A result that is a tensor, and its layout."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    grad_name: str


class Same(NamedTuple):
    """A result that is an earlier one, changed in place."""

    position: int


def describe_result(
    value: Any, known: Callable[[Tensor], int | None], *, is_traced: bool = False
) -> Any:
    """Return the description of what a call returned.

    Raises UnrecordableError.

    Args:
        value: What it returned.
        known: Returns the index of a tensor among earlier results; None if it is a new one.
        is_traced: Whether tensors are those of a trace.
    """
    kind = type(value)
    if kind is Tensor or (is_traced and isinstance(value, Tensor)):
        index = known(value)
        if index is not None:
            return Same(index)
        if value.layout is not torch.strided or not value.is_cpu:
            raise UnrecordableError("a result is not dense and on the CPU")
        return Layout(value.shape, value.stride(), value.dtype, grad_name_of(value))
    if kind in PLAIN:
        return Plain(kind, value)
    if isinstance(value, tuple | list | dict):
        if isinstance(value, dict) and kind is not dict:
            raise UnrecordableError(f"a result is a {kind.__name__}")
        members = value.values() if isinstance(value, dict) else value
        keys = tuple(value) if isinstance(value, dict) else ()
        described = [describe_result(member, known, is_traced=is_traced) for member in members]
        return Container(kind, keys, tuple(described))
    raise UnrecordableError(f"a result is a {kind.__name__}")


def holds_tensor(description: Any) -> bool:
    """Return whether a result is a tensor, or has one in it."""
    if type(description) is Container:
        return any(map(holds_tensor, description.members))
    return type(description) in {Layout, Same}


def make_result(
    description: Any, make: Callable[[Layout], Any], known: Callable[[int], Any]
) -> Any:
    """Return a result with the tensors that `make` returns."""
    kind = type(description)
    if kind is Layout:
        return make(description)
    if kind is Plain:
        return description.value
    if kind is Same:
        return known(description.position)
    members = [make_result(member, make, known) for member in description.members]
    if description.kind is dict:
        return dict(zip(description.keys, members, strict=True))
    if hasattr(description.kind, "_fields"):
        return description.kind(*members)
    return description.kind(members)


def new_tensors(value: Any, description: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result that are no earlier results."""
    kind = type(description)
    if kind is Layout:
        yield value
    elif kind is Container:
        members = value.values() if isinstance(value, dict) else value
        for member, each in zip(members, description.members, strict=True):
            yield from new_tensors(member, each)
