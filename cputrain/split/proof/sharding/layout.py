"""Layouts of the batch in a tensor, and operator calls with the layouts of their arguments."""

from __future__ import annotations

from typing import NamedTuple

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Shape = Sequence[int]


class Shard(NamedTuple):
    """Samples along one dimension, at index `(outer * num_samples + sample) * inner + i`."""

    dim: int
    inner: int = 1
    """Number of adjacent entries of one sample in that dimension."""


class SampleIndex(NamedTuple):
    """Integers `sample * step` along one dimension, as `torch.arange` returns them."""

    dim: int
    step: int = 1


class Opaque(NamedTuple):
    """An output that only a backward reads, for example a workspace."""


class Reduced(NamedTuple):
    """A scalar loss of the whole batch, equal in all replicas; each gets its samples' gradients."""


Layout = Shard | SampleIndex | Opaque | Reduced | None
"""Layout of the batch in a tensor; None for a replicated tensor, equal for all shards."""


class MixesSamples(Exception):  # noqa: N818  (a finding; nothing has failed)
    """The operator mixes samples; the message ends a sentence that begins with the operator."""


class OperatorCall:
    """An operator call: arguments by name, their layouts, and the outputs."""

    def __init__(
        self,
        name: str,
        arguments: dict[str, Any],
        layouts: dict[int, Layout],
        outputs: Sequence[torch.Tensor],
        num_samples: int,
        reference: Sequence[Shape] | None,
    ) -> None:
        """Set up the call of an operator.

        Args:
            name: the operator's name, with the underscore of in-place operators.
            arguments: arguments by name, with defaults.
            layouts: layout of each tensor argument by the tensor's id.
            outputs: the tensors that the call returned.
            num_samples: size of the batch.
            reference: shapes of the outputs for another batch size, if known.
        """
        self.name = name
        self.arguments = arguments
        self.outputs = outputs
        self.num_samples = num_samples
        self.reference = reference
        self.needs_two_samples = False
        """Whether a shard of one sample would be computed in another way."""
        self._layouts = layouts

    def __getitem__(self, name: str) -> Any:
        """Return an argument by name; None if the operator has no such argument."""
        return self.arguments.get(name)

    def layout(self, value: Any) -> Layout:
        """Return the layout of an argument; None if it is replicated or not a tensor."""
        return self._layouts[id(value)] if isinstance(value, torch.Tensor) else None

    def shard(self, value: Any) -> Shard | None:
        """Return the shard of a tensor; None if it is replicated. Raise for other layouts."""
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
        """All tensors among the arguments, including tensors in lists."""
        tensors: list[torch.Tensor] = []
        for value in self.arguments.values():
            if isinstance(value, torch.Tensor):
                tensors.append(value)
            elif isinstance(value, list | tuple):
                tensors += [item for item in value if isinstance(item, torch.Tensor)]
        return tensors

    def scaled_dims(self, output: int = 0) -> list[int]:
        """Return the dimensions of an output whose size depends on the batch size."""
        shape = self.outputs[output].shape
        if self.reference is None:
            return []
        reference_shape = self.reference[output]
        return [dim for dim in range(len(shape)) if shape[dim] != reference_shape[dim]]

    def same_layout_for_all(self, layout: Layout) -> list[Layout]:
        """Return this layout for each output."""
        return [layout] * len(self.outputs)


def positive_dim(dim: int, num_dims: int) -> int:
    """Return a dimension counted from the front."""
    return dim + num_dims if dim < 0 else dim


def common_layout(layouts: Sequence[Layout]) -> Layout:
    """Return the single layout of all sharded arguments; None if all are replicated."""
    common: Layout = None
    for layout in layouts:
        if layout is not None:
            if common is not None and common != layout:
                raise MixesSamples("combines samples that lie in different dimensions")
            common = layout
    return common
