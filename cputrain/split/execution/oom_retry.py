"""Retry of a sharded call with a shrink shard on the device that ran out of memory.

In the forward, or in the backward: then the forward is repeated first with the same random numbers
and buffers, and the caller sees none of it.
"""

from __future__ import annotations

import gc
import traceback

import torch

from cputrain.split.execution.replica import home_of, shape_of, version_of
from cputrain.split.sync.rng import Generators

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from torch import nn

    from cputrain.split.balance.auto_replicas import Sizes
    from cputrain.split.execution.autograd import ShardedForward


class Snapshot:
    """Snapshot of the generators' states and of some buffers of a model."""

    def __init__(self, model: nn.Module, changing: frozenset[str]) -> None:
        self._generators = Generators(home_of(model))
        self._states = self._generators.get()
        self._buffers = [
            (buffer, buffer.clone()) for name, buffer in model.named_buffers() if name in changing
        ]

    def restore(self) -> None:
        """Restore the generators and buffers."""
        self._generators.set(self._states)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


class OomRetry:
    """What is needed to repeat a call, for as long as the model and its inputs are unchanged."""

    def __init__(
        self,
        model: nn.Module,
        changing: frozenset[str],
        inputs: Sequence[Any],
        shrink: Callable[[Sizes, int], Sizes | None],
    ) -> None:
        """Remember the state before the call.

        `shrink` takes the shard sizes and the index of the shard that ran out of memory, limits
        that device from now on, and returns the new sizes; None where the device cannot have fewer
        samples.
        """
        self._model = model
        self._changing = changing
        self._inputs = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor)]
        self.shrink = shrink
        self.before = self.snapshot()
        self._signature_before = self._signature()

    def snapshot(self) -> Snapshot:
        """Snapshot what a forward changes."""
        return Snapshot(self._model, self._changing)

    @property
    def is_possible(self) -> bool:
        """Whether repeating the forward would give the same result."""
        return self._signature() == self._signature_before

    def _signature(self) -> tuple[Any, ...]:
        tensors = [*self._model.parameters(), *self._inputs]
        return shape_of(self._model, tensors=True), [version_of(tensor) for tensor in tensors]


class Attempts:
    """A sharded call: the first attempt, or the one that replaced it."""

    def __init__(
        self, make: Callable[[Sizes], ShardedForward], sizes: Sizes, retry: OomRetry | None = None
    ) -> None:
        self._make = make
        self._sizes = sizes
        self._retry = retry
        self._call: ShardedForward | None = make(sizes)

    @property
    def call(self) -> ShardedForward:
        """The current attempt; raises after its graph was freed, as torch does."""
        if self._call is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time, after what it needs was let "
                "go of. Say retain_graph=True the first time."
            )
        return self._call

    def forward(self) -> None:
        """Run the forward; repeat it with shrink shards after an out-of-memory error."""
        try:
            return self.call.forward()
        except torch.OutOfMemoryError as error:
            if not self._shrink_shard(error):
                if self._retry is not None:  # restore the state before the call
                    self._retry.before.restore()
                raise
        return self._repeat_forward()

    def backward(self, *args: Any, keep: bool) -> list[torch.Tensor | None]:
        """Run the backward; free the graph unless `keep`."""
        gradients = self._backward(*args, keep=keep)
        if not keep:
            self._call = self._retry = None
            self._make = _freed
        return gradients

    def _backward(self, *args: Any, keep: bool) -> list[torch.Tensor | None]:
        try:
            return self.call.backward(*args, keep=keep)
        except torch.OutOfMemoryError as error:
            if not self._shrink_shard(error):
                raise
        assert self._retry is not None
        snapshot = self._retry.snapshot()
        try:
            self._repeat_forward()
        finally:
            snapshot.restore()
        return self.call.backward(*args, keep=keep)

    def _shrink_shard(self, error: torch.OutOfMemoryError) -> bool:
        """Shrink the shard that ran out of memory, free its graph; return whether it did."""
        if self._retry is None or self.call.oom_shard is None or not self._retry.is_possible:
            return False
        sizes = self._retry.shrink(self._sizes, self.call.oom_shard)
        if sizes is None:
            return False
        self._sizes = sizes
        self.call.drop_graph()
        traceback.clear_frames(error.__traceback__)
        return True

    def _repeat_forward(self) -> None:
        assert self._retry is not None
        gc.collect()
        self._retry.before.restore()
        self._call = self._make(self._sizes)
        self.call.forward()


def _freed(_sizes: Sizes) -> ShardedForward:
    raise AssertionError("what was let go of is not made again")
