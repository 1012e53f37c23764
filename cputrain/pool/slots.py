"""Where workers say what they are doing: a line of shared memory each.

A worker that is killed says nothing more, so it has said beforehand which task it begins. The pool
reads this when a worker has ended, and to see who has been at a task for too long.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from cputrain.ipc import Memory

_LINE = 64
"""Bytes: one cache line each, so that writing one does not slow the others."""

_SLOT = struct.Struct("<QQQ")
_LIMIT = struct.Struct("<QQ")
_NOW = struct.Struct("<QQ")
_TICKET = struct.Struct("<Q")


class Doing(NamedTuple):
    """What a worker has said last."""

    ticket: int
    """Of the task; 0 if it is at none."""
    item: int
    """Which item of the task."""
    since: int
    """Nanoseconds of the monotonic clock, which all processes share."""


class Slot:
    """One worker's line."""

    def __init__(self, memory: Memory, number: int) -> None:
        self._memory = memory
        self.number = number
        self._at = number * _LINE

    @staticmethod
    def room_for(count: int) -> Memory:
        """Memory for so many."""
        return Memory.create(count * _LINE)

    def begin(self, ticket: int) -> int:
        """A task begins; when, in nanoseconds of the monotonic clock."""
        now = time.monotonic_ns()
        _NOW.pack_into(self._memory.map, self._at + 8, 0, now)
        _TICKET.pack_into(self._memory.map, self._at, ticket)
        return now

    def begin_item(self, item: int) -> None:
        """One item of the task begins."""
        _NOW.pack_into(self._memory.map, self._at + 8, item, time.monotonic_ns())

    def end(self) -> None:
        """The task is over; also makes the line fit for another worker."""
        _TICKET.pack_into(self._memory.map, self._at, 0)

    def limit(self, ticket: int, items: int) -> None:
        """Told by the pool: to do only so many items of this task."""
        _LIMIT.pack_into(self._memory.map, self._at + 24, ticket, items)

    def is_limited(self, ticket: int, item: int) -> bool:
        """Whether this item is not to be begun."""
        limited, items = _LIMIT.unpack_from(self._memory.map, self._at + 24)
        return bool(limited == ticket and item >= items)

    def read(self) -> Doing:
        """What the worker does now."""
        return Doing(*_SLOT.unpack_from(self._memory.map, self._at))
