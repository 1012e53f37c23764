"""What a replica's thread knows of the part of the batch that it works on."""

from __future__ import annotations

import threading
import traceback
from contextlib import nullcontext

import torch
from torch.compiler import is_compiling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from contextlib import AbstractContextManager
    from typing import Any

    from cputrain.split.batch import Range
    from cputrain.split.proof.trace import Recorder
    from cputrain.split.sync.barrier import ReplicaBarrier
    from cputrain.split.sync.rng import SharedDraws


class _Now(threading.local):
    part: ReplicaContext | None = None


_now = _Now()


class UnprovedError(BaseException):
    """A question about the whole batch has another answer than in any proof.

    Not an Exception, which a model may catch.
    """


class ReplicaContext:
    """Entered by the thread that works on it."""

    def __init__(
        self,
        number: int,
        range_: Range,
        size: int,
        meeting: ReplicaBarrier,
        draws: SharedDraws,
        *,
        device: torch.device | None = None,
        apart: bool = False,
        trace: Recorder | None = None,
        proved: Collection[tuple[bool, ...]] | None = None,
    ) -> None:
        self.number = number
        self.begin, self.end = range_
        self.size = size
        """Samples of the whole batch."""
        self.device = draws.home if device is None else device
        """Where it is computed."""
        self.apart = apart
        """Whether parts are on several devices: what they bring to a meeting is in host memory."""
        self.meeting = meeting
        self.draws = draws
        self.trace = trace
        """Records the forward, where it is run for a proof."""
        self.proved = proved
        """Answers to questions about the whole batch for which there are proofs; None for any."""
        self.answers: list[bool] = []
        """That were given so far."""
        self.drawn = 0
        """How often it has drawn random numbers."""
        self._num_meetings = 0

    def next_meeting(self) -> int:
        """Return the number of this replica's next meeting with the others, from 0 on."""
        self._num_meetings += 1
        return self._num_meetings - 1

    def sums(self, key: str, *mine: Any) -> list[tuple[Any, ...]]:
        """What every part brings to a meeting, numbers or tensors, here where this part is."""
        if not self.apart:
            return self.meeting.meet(key, self.number, mine)
        brought = tuple(one.cpu() if isinstance(one, torch.Tensor) else one for one in mine)
        return [
            tuple(one.to(self.device) if isinstance(one, torch.Tensor) else one for one in values)
            for values in self.meeting.meet(key, self.number, brought)
        ]

    def decide(self, mine: bool, combine: Callable[[Iterable[bool]], bool]) -> bool:
        """Return the whole batch's answer to a question, of which this is the part's."""
        number = self.next_meeting()
        answer = combine(self.meeting.meet(f"question {number + 1}", self.number, mine))
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
        """Hide single operators from a recorder, which is told of all of them as one."""
        return nullcontext() if self.trace is None else self.trace.opaque()

    def __enter__(self) -> ReplicaContext:
        _now.part = self
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        _now.part = None
        if error is None:
            self.meeting.leave(self.number)


def current_replica() -> ReplicaContext | None:
    """The one that this thread works on; None outside of replicas, and where it is the whole."""
    return None if is_compiling() else _now.part


def end_checkpoints(error: BaseException) -> None:
    """Have checkpoints end that an error has left, in the thread that has begun them.

    Their hooks on saved tensors stay for as long as the frames of the traceback.
    """
    if torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
        traceback.clear_frames(error.__traceback__)
