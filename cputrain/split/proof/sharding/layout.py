"""Where the samples of a batch lie in a tensor; an operator with its arguments' layouts."""

from __future__ import annotations

from typing import NamedTuple

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Shape = Sequence[int]


class Shard(NamedTuple):
    """Samples lie along one dimension, whose index is (o * num_samples + sample) * inner + i."""

    dim: int
    inner: int = 1
    """Entries of one sample that lie side by side in that dimension."""


class SampleIndex(NamedTuple):
    """Whole numbers along one dimension: sample * step, as `torch.arange` makes them."""

    dim: int
    step: int = 1


class Opaque(NamedTuple):
    """An output that only a backward reads, a workspace for example."""


class Reduced(NamedTuple):
    """One number of the whole batch that all replicas have; gradients go to each one's samples."""


Layout = Shard | SampleIndex | Opaque | Reduced | None
"""None: replicated, the same for every shard of the batch."""


class MixesSamples(Exception):  # noqa: N818  (a finding; nothing has failed)
    """What the operator does with the batch, as the end of a sentence about it."""


class Operator:
    """A call of an operator: its arguments by name, their layouts, and its outputs."""

    def __init__(
        self,
        name: str,
        arguments: dict[str, Any],
        layouts: dict[int, Layout],
        outputs: Sequence[torch.Tensor],
        num_samples: int,
        reference: Sequence[Shape] | None,
    ) -> None:
        """`layouts` has every tensor argument by its id.

        `reference` has the outputs' shapes for another number of samples, where that is known.
        """
        self.name = name
        self.arguments = arguments
        self.outputs = outputs
        self.num_samples = num_samples
        self.reference = reference
        self.needs_two_samples = False
        """Whether it does something else with a shard of one sample."""
        self._layouts = layouts

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def layout(self, value: Any) -> Layout:
        return self._layouts[id(value)] if isinstance(value, torch.Tensor) else None

    def shard(self, value: Any) -> Shard | None:
        """Return where the samples of a tensor lie; None where it is replicated."""
        layout = self.layout(value)
        if isinstance(layout, SampleIndex):
            raise MixesSamples("computes with the numbers of samples")
        if isinstance(layout, Opaque):
            raise MixesSamples("reads what was kept for a backward")
        if isinstance(layout, Reduced):
            raise MixesSamples("computes with a loss of the whole batch")
        return layout

    @property
    def tensors(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for value in self.arguments.values():
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif isinstance(value, list | tuple):
                found += [one for one in value if isinstance(one, torch.Tensor)]
        return found

    def scaled_dims(self, output: int = 0) -> list[int]:
        """Return the dimensions of an output that grow with the number of samples."""
        shape = self.outputs[output].shape
        if self.reference is None:
            return []
        other = self.reference[output]
        return [dim for dim in range(len(shape)) if shape[dim] != other[dim]]

    def everywhere(self, layout: Layout) -> list[Layout]:
        return [layout] * len(self.outputs)


def positive_dim(dim: int, num_dims: int) -> int:
    return dim + num_dims if dim < 0 else dim


def common_layout(layouts: Sequence[Layout]) -> Layout:
    """Return the layout that all sharded ones have."""
    found: Layout = None
    for layout in layouts:
        if layout is not None:
            if found is not None and found != layout:
                raise MixesSamples("combines samples that lie in different dimensions")
            found = layout
    return found
