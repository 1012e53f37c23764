"""Which of a call's arguments are the batch, and its parts."""

from __future__ import annotations

from itertools import accumulate, pairwise

import torch
from torch.utils import _pytree as tree

from cputrain.split.proof.model_state import outline

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Range = tuple[int, int]


DIMS = (0, 1)
"""Where a batch may lie: first, or second, as in sequences that are not batch_first."""


class Arguments:
    """What a model was called with."""

    def __init__(self, args: tuple[Any, ...], options: dict[str, Any], dim: int) -> None:
        self.leaves, self._form = tree.tree_flatten((args, options))
        self.dim = dim
        first = next(
            (one for one in self.leaves if isinstance(one, torch.Tensor) and one.dim()), None
        )
        self.size = first.size(dim) if first is not None and first.dim() > dim else 0
        """Samples in the batch: what the first tensor has of them."""
        self.dims = [self._dim(leaf) for leaf in self.leaves]
        """Of each leaf, where the batch lies. What has no such dimension goes to all: None."""
        self.differentiable = [
            number
            for number, leaf in enumerate(self.leaves)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]

    def _dim(self, leaf: Any) -> int | None:
        if not isinstance(leaf, torch.Tensor) or not self.size:
            return None
        at = [dim for dim in (self.dim, *DIMS) if dim < leaf.dim() and leaf.size(dim) == self.size]
        return at[0] if at else None

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of all tensors in the dimensions in which samples do not lie."""
        return tuple(
            size
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
            if isinstance(leaf, torch.Tensor)
            for at, size in enumerate(leaf.shape)
            if at != dim
        )

    @property
    def kind(self) -> tuple[Any, ...]:
        """What calls of one kind have in common: what was found for one holds for the others."""
        leaves = tuple(
            (leaf.dim(), leaf.dtype, leaf.device.type, dim, leaf.requires_grad)
            if isinstance(leaf, torch.Tensor)
            else outline(leaf)  # what a model decides by
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        )
        return leaves, self._form

    def part(self, range_: Range) -> list[Any]:
        """The leaves of one part: views of the same memory, apart from the graph."""
        begin, end = range_
        return [
            leaf
            if not isinstance(leaf, torch.Tensor)
            else _apart(leaf if dim is None else leaf.narrow(dim, begin, end - begin))
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]

    def built(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments made of these."""
        args, options = tree.tree_unflatten(leaves, self._form)
        return args, options

    def first(self, count: int, *, exactly: bool) -> Arguments:
        """The same with fewer samples; `exactly` in float64."""
        leaves = [
            leaf
            if not isinstance(leaf, torch.Tensor)
            else leaf.detach().to(torch.float64, copy=True).requires_grad_(leaf.requires_grad)
            if exactly and leaf.is_floating_point()
            else leaf.detach().clone().requires_grad_(leaf.requires_grad)
            for leaf in self.part((0, count))
        ]
        return self._like(leaves, count)

    def some(self, pick: Callable[[int], torch.Tensor]) -> Arguments:
        """The same with the samples whose numbers `pick` returns for their count."""
        numbers = pick(self.size)
        leaves = [
            leaf.detach()
            .index_select(dim, numbers.to(leaf.device))
            .requires_grad_(leaf.requires_grad)
            if isinstance(leaf, torch.Tensor) and dim is not None
            else leaf
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]
        return self._like(leaves, len(numbers))

    def _like(self, leaves: Sequence[Any], size: int) -> Arguments:
        few = Arguments(*self.built(leaves), self.dim)
        few.size, few.dims = size, self.dims  # with fewer samples, others might look like them
        return few


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def divided(size: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Samples of each part, in proportion to the shares: at least one, while there are any."""
    count = min(size, len(shares))
    total = sum(shares[:count])
    edges = [round(size * sum_ / total) for sum_ in accumulate(shares[:count], initial=0.0)]
    for number in range(1, count):  # at least one sample for each
        edges[number] = max(edges[number], edges[number - 1] + 1)
    for number in range(count - 1, 0, -1):
        edges[number] = min(edges[number], edges[number + 1] - 1)
    return tuple(end - begin for begin, end in pairwise(edges))


def ranges(sizes: Sequence[int]) -> list[Range]:
    """Where each part begins and ends."""
    return list(pairwise(accumulate(sizes, initial=0)))
