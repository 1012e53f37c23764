"""How shards' outputs are put together to the output of the whole batch."""

from __future__ import annotations

import torch
from torch.utils import _pytree as tree

from cputrain.record import Record
from cputrain.runtime.kernel_threads import GRAIN_SIZE, KernelThreads
from cputrain.split.proof.model_state import StateCopier, outline, reachable
from cputrain.split.proof.refusal import CannotSplitError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

REDUCED = -1
"""In place of a dimension: a value reduced over the whole batch, the same in every shard."""


class OutputLayout(Record):
    """How outputs of shards make up the whole output, found by comparing with it."""

    dims: tuple[int | None, ...]
    """Batch dimension of each leaf; None for leaves that are the same in all shards.

    REDUCED where they are the same, but each shard's gradient is that of its own samples.
    """

    shared: tuple[LeafAlias | None, ...]
    """For each leaf, the leaf whose memory it shares; None for leaves with memory of their own."""

    def put(self, shards: Sequence[Sequence[Any]]) -> list[Any]:
        """Return the whole output's leaves; None for those that share another leaf's memory."""
        return [
            None
            if self.shared[number]
            else shards[0][number]
            if dim is None or dim == REDUCED
            else concatenate([shard[number] for shard in shards], dim)
            for number, dim in enumerate(self.dims)
        ]

    def share(self, leaves: Sequence[Any]) -> list[Any]:
        """Replace leaves that share memory by aliases of the leaf that they share it with."""
        return [
            leaf if shared is None else shared.alias_of(leaves[shared.number])
            for leaf, shared in zip(leaves, self.shared, strict=True)
        ]


class LeafAlias(Record):
    """An output leaf that shares another leaf's memory: the same tensor, or a view of it."""

    number: int
    """Index of the other leaf."""
    is_same: bool
    """Whether it is the same tensor object."""
    is_detached: bool

    def alias_of(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return the alias of this leaf."""
        if self.is_same:
            return leaf
        return leaf.detach() if self.is_detached else leaf.view_as(leaf)


def concatenate(shards: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """Concatenate shards along a dimension, in the memory order of the largest shard.

    A script may take a view of the result that only this order allows.
    """
    largest = max(shards, key=torch.Tensor.numel)
    if not largest.is_contiguous():
        order = sorted(range(largest.dim()), key=largest.stride, reverse=True)
        if largest.permute(order).is_contiguous():  # not where it has gaps or is expanded
            inverse = sorted(range(largest.dim()), key=order.__getitem__)
            shards = [shard.permute(order) for shard in shards]
            return _concatenate(shards, order.index(dim)).permute(inverse)
    return _concatenate(shards, dim)


def _concatenate(shards: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    if sum(map(torch.Tensor.numel, shards)) < GRAIN_SIZE:
        return torch.cat(tuple(shards), dim)
    with KernelThreads(torch).exact():
        return torch.cat(tuple(shards), dim)


def shared_memory(leaves: Sequence[Any]) -> list[LeafAlias | None]:
    """Return for each leaf the leaf whose memory it shares; None where it shares none.

    Raises:
        CannotSplitError: Two leaves share some of their elements only.
    """
    result: list[LeafAlias | None] = [None] * len(leaves)
    tensors = [number for number, leaf in enumerate(leaves) if _has_memory(leaf)]
    distinct: list[int] = []
    for number in sorted(tensors, key=lambda number: not leaves[number].requires_grad):
        leaf = leaves[number]
        for other_index in distinct:
            if _overlap(leaf, leaves[other_index]):
                if _view_key(leaf) != _view_key(leaves[other_index]):
                    first, second = sorted((other_index, number))
                    raise CannotSplitError(f"its outputs {first} and {second} share memory")
                result[number] = LeafAlias(
                    number=other_index,
                    is_same=leaf is leaves[other_index],
                    is_detached=leaf.requires_grad != leaves[other_index].requires_grad,
                )
                break
        else:
            distinct.append(number)
    return result


def _has_memory(leaf: Any) -> bool:
    return isinstance(leaf, torch.Tensor) and leaf.layout is torch.strided and leaf.numel() > 0


def _view_key(leaf: torch.Tensor) -> tuple[Any, ...]:
    return leaf.data_ptr(), leaf.dtype, leaf.shape, leaf.stride()


def _overlap(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Return whether two tensors have elements in common."""
    storage = first.untyped_storage()
    if storage.data_ptr() != second.untyped_storage().data_ptr():
        return False
    if _view_key(first) == _view_key(second) or first.element_size() != second.element_size():
        return True
    offsets = torch.arange(storage.nbytes() // first.element_size())
    is_in_first = torch.zeros_like(offsets, dtype=torch.bool)
    is_in_first[_view_like(offsets, first)] = True
    return bool(is_in_first[_view_like(offsets, second)].any())


def _view_like(offsets: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return offsets.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


class HeldTensors:
    """An object in an output that is no container and holds tensors, such as a key-value cache."""

    def __init__(self, value: Any, tensors: Sequence[torch.Tensor], structure: Any) -> None:
        self._value = value
        self._tensors = tensors
        self._structure = structure

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HeldTensors) and self._structure == other._structure

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._tensors)

    def rebuild(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a copy of the object that holds these tensors."""
        copier = StateCopier()
        for before, after in zip(self._tensors, tensors, strict=True):
            copier.put(before, after)
        return copier.copy(self._value)


class OutputForm:
    """The structure of an output: torch's pytree containers, and objects in them."""

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

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """Return the output made of these leaves."""
        remaining = list(leaves)
        values: list[Any] = []
        for number in range(self._spec.num_leaves):
            held = self._objects.get(number)
            count = 1 if held is None else len(held)
            held_leaves, remaining = remaining[:count], remaining[count:]
            values.append(held_leaves[0] if held is None else held.rebuild(held_leaves))
        return tree.tree_unflatten(values, self._spec)


def leaves_of(output: Any) -> tuple[list[Any], OutputForm]:
    """Return an output's leaves, including tensors within objects, and its structure."""
    flat, spec = tree.tree_flatten(output)
    leaves: list[Any] = []
    objects: dict[int, HeldTensors] = {}
    for number, leaf in enumerate(flat):
        held = _held_tensors(leaf)
        if held is None:
            leaves.append(leaf)
        else:
            objects[number] = held
            leaves += held._tensors
    return leaves, OutputForm(spec, objects)


def _held_tensors(leaf: Any) -> HeldTensors | None:
    if isinstance(leaf, torch.Tensor | torch.nn.Module) or not hasattr(leaf, "__dict__"):
        return None
    tensors = [value for _, value in reachable(leaf) if isinstance(value, torch.Tensor)]
    return HeldTensors(leaf, tensors, outline(leaf)) if tensors else None
