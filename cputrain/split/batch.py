"""The arguments of a call: which tensors hold the batch, and their shards."""

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
"""Dimensions that may be the batch: the first, or the second as in sequences not batch_first."""


class Arguments:
    """The arguments of a model's call, flattened to leaves."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any], dim: int) -> None:
        self.leaves, self._spec = tree.tree_flatten((args, kwargs))
        self.dim = dim
        first = next(
            (tensor for tensor in self.leaves if isinstance(tensor, torch.Tensor) and tensor.dim()),
            None,
        )
        self.size = first.size(dim) if first is not None and first.dim() > dim else 0
        """Samples in the batch: the size of the first tensor along `dim`."""
        self.dims = [self._dim(leaf) for leaf in self.leaves]
        """Batch dimension of each leaf; None for leaves that all replicas get whole."""
        self.differentiable = [
            number
            for number, leaf in enumerate(self.leaves)
            if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]

    def _dim(self, leaf: Any) -> int | None:
        if not isinstance(leaf, torch.Tensor) or not self.size:
            return None
        candidates = [
            dim for dim in (self.dim, *DIMS) if dim < leaf.dim() and leaf.size(dim) == self.size
        ]
        return candidates[0] if candidates else None

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all tensors along the dimensions that are not the batch."""
        return tuple(
            size
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
            if isinstance(leaf, torch.Tensor)
            for axis, size in enumerate(leaf.shape)
            if axis != dim
        )

    @property
    def kind(self) -> tuple[Any, ...]:
        """A key that is equal for calls which one proof covers."""
        leaves = tuple(
            (leaf.dim(), leaf.dtype, leaf.device.type, dim, leaf.requires_grad)
            if isinstance(leaf, torch.Tensor)
            else outline(leaf)  # a non-tensor argument, which may select the model's path
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        )
        return leaves, self._spec

    def part(self, range_: Range) -> list[Any]:
        """Return the leaves of one shard: detached views of the same memory."""
        begin, end = range_
        return [
            leaf
            if not isinstance(leaf, torch.Tensor)
            else _detached(leaf if dim is None else leaf.narrow(dim, begin, end - begin))
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]

    def built(self, leaves: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional and keyword arguments made of these leaves."""
        args, kwargs = tree.tree_unflatten(leaves, self._spec)
        return args, kwargs

    def first(self, count: int, *, exactly: bool) -> Arguments:
        """Return a copy with the first `count` samples; with `exactly` in float64."""
        leaves = [
            leaf
            if not isinstance(leaf, torch.Tensor)
            else leaf.detach().to(torch.float64, copy=True).requires_grad_(leaf.requires_grad)
            if exactly and leaf.is_floating_point()
            else leaf.detach().clone().requires_grad_(leaf.requires_grad)
            for leaf in self.part((0, count))
        ]
        return self._with_leaves(leaves, count)

    def select(self, pick: Callable[[int], torch.Tensor]) -> Arguments:
        """Return a copy with the samples whose indices `pick` returns for the batch size."""
        indices = pick(self.size)
        leaves = [
            leaf.detach()
            .index_select(dim, indices.to(leaf.device))
            .requires_grad_(leaf.requires_grad)
            if isinstance(leaf, torch.Tensor) and dim is not None
            else leaf
            for leaf, dim in zip(self.leaves, self.dims, strict=True)
        ]
        return self._with_leaves(leaves, len(indices))

    def _with_leaves(self, leaves: Sequence[Any], size: int) -> Arguments:
        arguments = Arguments(*self.built(leaves), self.dim)
        # with fewer samples, other dimensions might have the batch's size
        arguments.size, arguments.dims = size, self.dims
        return arguments


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


def divided(size: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Return shard sizes in proportion to the shares: at least 1 each, while there are samples."""
    count = min(size, len(shares))
    total = sum(shares[:count])
    edges = [
        round(size * partial_sum / total) for partial_sum in accumulate(shares[:count], initial=0.0)
    ]
    for index in range(1, count):  # at least one sample for each
        edges[index] = max(edges[index], edges[index - 1] + 1)
    for index in range(count - 1, 0, -1):
        edges[index] = min(edges[index], edges[index + 1] - 1)
    return tuple(end - begin for begin, end in pairwise(edges))


def ranges(sizes: Sequence[int]) -> list[Range]:
    """Return where each shard begins and ends."""
    return list(pairwise(accumulate(sizes, initial=0)))
