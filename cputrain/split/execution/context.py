"""The shard that a replica's thread is computing: its range, device, barrier and random draws."""

from __future__ import annotations

import threading
import traceback
from contextlib import nullcontext

import torch
from torch.compiler import is_compiling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.split.batch import Range
    from cputrain.split.proof.trace import OperatorRecorder
    from cputrain.split.sync.barrier import ReplicaBarrier
    from cputrain.split.sync.rng import SharedDraws


class _ContextState(threading.local):
    """Replica context of this thread, while it computes a replica."""

    context: ReplicaContext | None = None


_context_state = _ContextState()


class UnprovedError(BaseException):
    """A question about the whole batch has an answer that no proof covers.

    Not an Exception, which a model may catch.
    """


class ReplicaContext:
    """One replica's shard in one call; a context manager for the thread that computes it."""

    def __init__(
        self,
        number: int,
        range_: Range,
        size: int,
        barrier: ReplicaBarrier,
        draws: SharedDraws,
        *,
        device: torch.device | None = None,
        is_multi_device: bool = False,
        trace: OperatorRecorder | None = None,
        proved: Collection[tuple[bool, ...]] | None = None,
        parameters: Mapping[int, int] | None = None,
    ) -> None:
        self.number = number
        self.begin, self.end = range_
        self.size = size
        """Samples of the whole batch."""
        self.device = draws.home if device is None else device
        """Device that computes the shard."""
        self.is_multi_device = is_multi_device
        """Whether a shard is on another device than the model: then gather through the CPU."""
        self.barrier = barrier
        self.draws = draws
        self.trace = trace
        """Recorder of the forward's operators, in a forward that is run for a proof."""
        self.proved = proved
        """Answers to questions about the whole batch that a proof covers; None for any."""
        self.parameters = {} if parameters is None else parameters
        """Numbers of the replica's parameters, by id: those whose gradient may be rows."""
        self.row_gradients: set[int] = set()
        """Numbers of the parameters whose gradient is the rows that the shard reads."""
        self.answers: list[bool] = []
        """Answers given so far in this call."""
        self.num_draws = 0
        """Number of random draws made so far in this call."""
        self._num_rendezvous = 0

    def next_rendezvous(self) -> int:
        """Return the index of this replica's next rendezvous, counted from 0."""
        self._num_rendezvous += 1
        return self._num_rendezvous - 1

    def all_gather(self, key: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the values that each replica passes for this key, on this replica's device."""
        if not self.is_multi_device:
            return self.barrier.all_gather(key, self.number, values)
        host_values = tuple(
            value.cpu() if isinstance(value, torch.Tensor) else value for value in values
        )
        return [
            tuple(
                value.to(self.device) if isinstance(value, torch.Tensor) else value
                for value in gathered_values
            )
            for gathered_values in self.barrier.all_gather(key, self.number, host_values)
        ]

    def all_reduce(
        self, key: str, combine: Callable[[list[tuple[Any, ...]]], Any], *values: Any
    ) -> Any:
        """Return what `combine` makes of the values that each replica passes for this key.

        It is called once for all replicas of a device. They share what it returns.
        """
        if self.is_multi_device:
            return combine(self.all_gather(key, *values))
        return self.barrier.all_reduce(key, self.number, values, combine)

    def decide(self, shard_answer: bool, combine: Callable[[Iterable[bool]], bool]) -> bool:
        """Combine every replica's answer to a question and return the whole batch's answer."""
        number = self.next_rendezvous()
        answer = combine(
            self.barrier.all_gather(f"question {number + 1}", self.number, shard_answer)
        )
        if self.trace is not None:
            answer = self.trace.answer(answer)
        self.answers.append(answer)
        count = len(self.answers)
        if self.proved is not None and not any(
            list(proved[:count]) == self.answers for proved in self.proved
        ):
            raise UnprovedError
        return answer

    def untraced(self) -> AbstractContextManager[Any]:
        """Hide operators from the recorder, which is told of them as one operation."""
        return nullcontext() if self.trace is None else self.trace.opaque()

    def __enter__(self) -> ReplicaContext:
        _context_state.context = self
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        _context_state.context = None
        if error is None:
            self.barrier.leave(self.number)


def current_replica() -> ReplicaContext | None:
    """Return the context of this thread; None outside replicas and while torch.compile traces."""
    return None if is_compiling() else _context_state.context


def end_checkpoints(error: BaseException) -> None:
    """Close the checkpoints that an exception left open, in the thread that opened them.

    Their saved-tensor hooks stay registered for as long as the traceback's frames live.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        traceback.clear_frames(error.__traceback__)
