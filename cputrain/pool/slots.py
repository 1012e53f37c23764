"""Slots: one cache line of shared memory per worker, with the task and item it is running.

A worker writes a task's ticket before it begins the task, so that the pool knows which task a
killed worker was running. The pool also reads slots to find tasks that exceed their timeout.
"""

from __future__ import annotations

import struct
import time
from typing import NamedTuple

from cputrain.ipc import ArenaMemory

_SLOT_BYTES = 64
"""Bytes of a slot: one cache line, against false sharing."""

_SLOT = struct.Struct("<QQQ")
_LIMIT = struct.Struct("<QQ")
_ITEM = struct.Struct("<QQ")
_TICKET = struct.Struct("<Q")


class WorkerState(NamedTuple):
    """The state that a worker wrote last: the task and item it is running."""

    ticket: int
    """The task's ticket; 0 if the worker is idle."""
    item: int
    """The index of the item in the task."""
    since_ns: int
    """When the item began, in nanoseconds of the monotonic clock, which all processes share."""


class Slot:
    """One worker's slot."""

    def __init__(self, memory: ArenaMemory, number: int) -> None:
        self._memory = memory
        self.number = number
        self._offset = number * _SLOT_BYTES

    @staticmethod
    def room_for(count: int) -> ArenaMemory:
        """Allocate shared memory for `count` slots."""
        return ArenaMemory.create(count * _SLOT_BYTES)

    def begin(self, ticket: int) -> int:
        """Write that a task begins; return the time in nanoseconds of the monotonic clock."""
        now_ns = time.monotonic_ns()
        _ITEM.pack_into(self._memory.map, self._offset + 8, 0, now_ns)
        _TICKET.pack_into(self._memory.map, self._offset, ticket)
        return now_ns

    def begin_item(self, item: int) -> None:
        """Write that an item of the task begins."""
        _ITEM.pack_into(self._memory.map, self._offset + 8, item, time.monotonic_ns())

    def end(self) -> None:
        """Write that no task is running; also clears the slot for another worker."""
        _TICKET.pack_into(self._memory.map, self._offset, 0)

    def limit(self, ticket: int, num_items: int) -> None:
        """Limit a task to its first `num_items` items; written by the pool."""
        _LIMIT.pack_into(self._memory.map, self._offset + 24, ticket, num_items)

    def is_limited(self, ticket: int, item: int) -> bool:
        """Return whether the pool has taken this item of the task back."""
        limited_ticket, num_items = _LIMIT.unpack_from(self._memory.map, self._offset + 24)
        return bool(limited_ticket == ticket and item >= num_items)

    def read(self) -> WorkerState:
        """Return the worker's current state."""
        return WorkerState(*_SLOT.unpack_from(self._memory.map, self._offset))
