"""How the outputs of a batch's parts are put together."""

from __future__ import annotations

import torch
from torch.utils import _pytree as tree

from cputrain.record import Record
from cputrain.split.proof.model_state import StateCopier, outline, reachable
from cputrain.split.proof.refusal import CannotSplitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

REDUCED = -1
"""In the place of a dimension: a number of the whole batch, which every part has."""


class OutputLayout(Record):
    """How the outputs of the parts make one, found where the whole output is known."""

    dims: tuple[int | None, ...]
    """Of each leaf, the dimension along which the parts lie; None where all have the same.

    REDUCED where all have the same, and each part's gradient is that of its own samples.
    """

    shared: tuple[Shared | None, ...]
    """Of each leaf, the one whose memory it has."""

    def put(self, parts: Sequence[Sequence[Any]]) -> list[Any]:
        """The leaves of the whole; None for those that share the memory of another."""
        return [
            None
            if self.shared[number]
            else parts[0][number]
            if dim is None or dim == REDUCED
            else concatenated([part[number] for part in parts], dim)
            for number, dim in enumerate(self.dims)
        ]

    def share(self, leaves: Sequence[Any]) -> list[Any]:
        """The same with those that share memory."""
        return [
            leaf if shared is None else shared.made(leaves[shared.number])
            for leaf, shared in zip(leaves, self.shared, strict=True)
        ]


class Shared(Record):
    """A leaf of an output that has the memory of another: the same tensor, or a view."""

    number: int
    """Of that leaf."""
    is_same: bool
    """Whether it is the same tensor."""
    is_detached: bool

    def made(self, leaf: torch.Tensor) -> torch.Tensor:
        """Make it of that leaf."""
        if self.is_same:
            return leaf
        return leaf.detach() if self.is_detached else leaf.view_as(leaf)


def concatenated(parts: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """Put parts together along a dimension, in memory in the order in which the parts' lie.

    A script may take a view of the whole that only this order has.
    """
    largest = max(parts, key=torch.Tensor.numel)
    if largest.is_contiguous():
        return torch.cat(tuple(parts), dim)
    order = sorted(range(largest.dim()), key=largest.stride, reverse=True)
    if not largest.permute(order).is_contiguous():  # with gaps, or expanded
        return torch.cat(tuple(parts), dim)
    back = sorted(range(largest.dim()), key=order.__getitem__)
    return torch.cat([part.permute(order) for part in parts], order.index(dim)).permute(back)


def shared_memory(leaves: Sequence[Any]) -> list[Shared | None]:
    """Tell which leaves of an output have the memory of others.

    Raises CannotSplitError where only some elements are the same.
    """
    found: list[Shared | None] = [None] * len(leaves)
    tensors = [number for number, leaf in enumerate(leaves) if _has_memory(leaf)]
    own: list[int] = []
    for number in sorted(tensors, key=lambda number: not leaves[number].requires_grad):
        leaf = leaves[number]
        for other in own:
            if _overlap(leaf, leaves[other]):
                if _place(leaf) != _place(leaves[other]):
                    first, second = sorted((other, number))
                    raise CannotSplitError(f"its outputs {first} and {second} share memory")
                found[number] = Shared(
                    number=other,
                    is_same=leaf is leaves[other],
                    is_detached=leaf.requires_grad != leaves[other].requires_grad,
                )
                break
        else:
            own.append(number)
    return found


def _has_memory(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel() > 0


def _place(leaf: torch.Tensor) -> tuple[Any, ...]:
    return leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride()


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether tensors have elements in common."""
    memory = one.untyped_storage()
    if memory.data_ptr() != other.untyped_storage().data_ptr():
        return False
    if _place(one) == _place(other) or one.element_size() != other.element_size():
        return True
    numbers = torch.arange(memory.nbytes() // one.element_size())
    is_in_one = torch.zeros_like(numbers, dtype=torch.bool)
    is_in_one[_strided_like(numbers, one)] = True
    return bool(is_in_one[_strided_like(numbers, other)].any())


def _strided_like(numbers: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return numbers.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class HeldTensors:
    """An object in an output that is no container and holds tensors, a cache of keys and values."""

    def __init__(self, value: Any, tensors: Sequence[torch.Tensor], rest: Any) -> None:
        self._value = value
        self._tensors = tensors
        self._rest = rest

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldTensors) and self._rest == other._rest

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._tensors)

    def built(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a copy of the object that holds these."""
        copier = StateCopier()
        for before, after in zip(self._tensors, tensors, strict=True):
            copier.put(before, after)
        return copier.copy(self._value)


class OutputForm:
    """How an output is built of its leaves: containers of torch's pytree, and objects in them."""

    def __init__(self, spec: Any, objects: dict[int, HeldTensors]) -> None:
        self._spec = spec
        self._objects = objects

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, OutputForm)
            and self._spec == other._spec
            and self._objects == other._objects
        )

    __hash__ = None  # type: ignore[assignment]

    def built(self, leaves: Sequence[Any]) -> Any:
        """Return the output that is made of these leaves."""
        rest = list(leaves)
        whole: list[Any] = []
        for number in range(self._spec.num_leaves):
            held = self._objects.get(number)
            count = 1 if held is None else len(held)
            taken, rest = rest[:count], rest[count:]
            whole.append(taken[0] if held is None else held.built(taken))
        return tree.tree_unflatten(whole, self._spec)


def leaves_of(output: Any) -> tuple[list[Any], OutputForm]:
    """Return an output's leaves, tensors within objects among them, and how it is built of them."""
    flat, spec = tree.tree_flatten(output)
    leaves: list[Any] = []
    objects: dict[int, HeldTensors] = {}
    for number, leaf in enumerate(flat):
        held = _held(leaf)
        if held is None:
            leaves.append(leaf)
        else:
            objects[number] = held
            leaves += held._tensors
    return leaves, OutputForm(spec, objects)


def _held(leaf: Any) -> HeldTensors | None:
    if isinstance(leaf, torch.Tensor | torch.nn.Module) or not hasattr(leaf, "__dict__"):
        return None
    tensors = [value for _, value in reachable(leaf) if isinstance(value, torch.Tensor)]
    return HeldTensors(leaf, tensors, outline(leaf)) if tensors else None
