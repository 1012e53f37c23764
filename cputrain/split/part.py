"""What a replica's thread knows of the part of the batch that it works on."""

from __future__ import annotations

import threading

from torch.compiler import is_compiling

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.split.batch import Range
    from cputrain.split.draws import Draws
    from cputrain.split.meeting import Meeting


class _Now(threading.local):
    part: Part | None = None


_now = _Now()


class Part:
    """Entered by the thread that works on it."""

    def __init__(
        self, number: int, range_: Range, size: int, meeting: Meeting, draws: Draws
    ) -> None:
        self.number = number
        self.begin, self.end = range_
        self.size = size
        """Samples of the whole batch."""
        self.meeting = meeting
        self.draws = draws
        self.drawn = 0
        """How often it has drawn random numbers."""
        self.met = 0
        """How often it has met the others for the sums of a batch norm."""

    def __enter__(self) -> Part:
        _now.part = self
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        _now.part = None
        if error is None:
            self.meeting.leave(self.number)
        else:
            self.meeting.part()


def part_here() -> Part | None:
    """The one that this thread works on; None outside of replicas, and where it is the whole."""
    return None if is_compiling() else _now.part
