"""A call once more, with less on a device whose memory was not enough for its part.

In its forward, or in its backward: then the forward comes first once more, with the random numbers
that it had, and nothing of it is seen.
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


class Kept:
    """Random numbers and some buffers of a model, as they are now."""

    def __init__(self, model: nn.Module, changing: frozenset[str]) -> None:
        self._generators = Generators(home_of(model))
        self._states = self._generators.get()
        self._buffers = [
            (buffer, buffer.clone()) for name, buffer in model.named_buffers() if name in changing
        ]

    def put_back(self) -> None:
        """Have them so again."""
        self._generators.set(self._states)
        with torch.no_grad():
            for buffer, value in self._buffers:
                buffer.copy_(value)


class OomRetry:
    """What it takes to make a call again, as long as nothing of it has changed."""

    def __init__(
        self,
        model: nn.Module,
        changing: frozenset[str],
        inputs: Sequence[Any],
        smaller: Callable[[Sizes, int], Sizes | None],
    ) -> None:
        """`smaller` gives less to a device from now on, that of the part of this number: what
        each has then, or None if that cannot be."""
        self._model = model
        self._changing = changing
        self._inputs = [one for one in inputs if isinstance(one, torch.Tensor)]
        self.smaller = smaller
        self.before = self.now()
        self._known = self._look()

    def now(self) -> Kept:
        """What a forward changes."""
        return Kept(self._model, self._changing)

    @property
    def is_possible(self) -> bool:
        """Whether a forward would be the same still."""
        return self._look() == self._known

    def _look(self) -> tuple[Any, ...]:
        tensors = [*self._model.parameters(), *self._inputs]
        return shape_of(self._model, tensors=True), [version_of(one) for one in tensors]


class Attempts:
    """A call: the first one, or the one that was made again."""

    def __init__(
        self, make: Callable[[Sizes], ShardedForward], sizes: Sizes, again: OomRetry | None = None
    ) -> None:
        self._make = make
        self._sizes = sizes
        self._again = again
        self._call: ShardedForward | None = make(sizes)

    @property
    def call(self) -> ShardedForward:
        """As torch does, what a backward needs is kept until there was one."""
        if self._call is None:
            raise RuntimeError(
                "Trying to backward through the graph a second time, after what it needs was let "
                "go of. Say retain_graph=True the first time."
            )
        return self._call

    def forward(self) -> None:
        """Run every part."""
        try:
            return self.call.forward()
        except torch.OutOfMemoryError as error:
            if not self._gives_less(error):
                if self._again is not None:  # it is as if nothing had been
                    self._again.before.put_back()
                raise
        return self._once_more()

    def backward(self, *args: Any, keep: bool) -> list[torch.Tensor | None]:
        """As of the call. Nothing of it is kept, if it is not to be done again."""
        found = self._backward(*args, keep=keep)
        if not keep:
            self._call = self._again = None
            self._make = _never
        return found

    def _backward(self, *args: Any, keep: bool) -> list[torch.Tensor | None]:
        try:
            return self.call.backward(*args, keep=keep)
        except torch.OutOfMemoryError as error:
            if not self._gives_less(error):
                raise
        assert self._again is not None
        now = self._again.now()
        try:
            self._once_more()
        finally:
            now.put_back()
        return self.call.backward(*args, keep=keep)

    def _gives_less(self, error: torch.OutOfMemoryError) -> bool:
        """Whether it did; then nothing is left of the call that fills the memory."""
        if self._again is None or self.call.too_large is None or not self._again.is_possible:
            return False
        sizes = self._again.smaller(self._sizes, self.call.too_large)
        if sizes is None:
            return False
        self._sizes = sizes
        self.call.forget()
        traceback.clear_frames(error.__traceback__)
        return True

    def _once_more(self) -> None:
        assert self._again is not None
        gc.collect()
        self._again.before.put_back()
        self._call = self._make(self._sizes)
        self.call.forward()


def _never(_sizes: Sizes) -> ShardedForward:
    raise AssertionError("what was let go of is not made again")
