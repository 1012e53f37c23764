"""What goes through a pool's pipes.

All workers read the same pipe of tasks. It is one of packets: each read takes one whole packet,
whoever reads, so that no lock is needed, and none can be left locked by a worker that is killed.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from cputrain.ipc import Lent
from cputrain.ipc.arena import LENT

LONGEST = 4096
"""Bytes of a packet. A task that is longer lies in a block, and the packet says where."""

TICKET = struct.Struct("<Q")
"""The number of a task, with which its packet begins."""

TOKEN = struct.Struct("<QI")
"""A block that is held no more."""

_TASK = struct.Struct("<QBBIII")
_RESULT = struct.Struct("<QBBIIIQ")


class Kind(IntEnum):
    """How a function is applied to what a task holds."""

    CALL = 0
    """`function(*args, **kwds)` of one pair of arguments."""
    EACH = 1
    """`function(item)` for each item."""
    STAR = 2
    """`function(*item)` for each item."""
    APART = 3
    """`function(item)` for each item, and each has an outcome of its own."""
    ATOMS = 4
    """The same, of items that can share a pickle."""
    STOP = 5
    """Nothing: the worker ends."""
    JOINT_CALL = 6
    """As CALL, with the function in one pickle with the arguments."""
    JOINT_EACH = 7
    JOINT_STAR = 8
    JOINT_APART = 9
    """As APART, with a function of its own in each item's pickle."""


_KINDS = tuple(Kind)

JOINT = {
    Kind.CALL: Kind.JOINT_CALL,
    Kind.EACH: Kind.JOINT_EACH,
    Kind.STAR: Kind.JOINT_STAR,
    Kind.APART: Kind.JOINT_APART,
}

APPLIED_AS = {joint: kind for kind, joint in JOINT.items()}
"""How a function is applied that comes with its arguments."""


class Part(NamedTuple):
    """Something packed: its pickle and its blocks. Without bytes, the last block is the pickle."""

    data: bytes | memoryview
    lent: list[Lent]


class TaskPacket(NamedTuple):
    """A task on its way to whichever worker reads it."""

    ticket: int
    kind: Kind
    is_timed: bool
    """Whether the worker tells when it begins each item."""
    function: Part
    arguments: Part

    def encode(self) -> bytearray:
        """As bytes; the ticket comes first."""
        head = _TASK.pack(
            self.ticket,
            self.kind,
            self.is_timed,
            len(self.function.lent),
            len(self.arguments.lent),
            len(self.function.data),
        )
        lent = [LENT.pack(*one) for one in (*self.function.lent, *self.arguments.lent)]
        return bytearray().join((head, *lent, self.function.data, self.arguments.data))

    @classmethod
    def decode(cls, packet: bytes | memoryview) -> TaskPacket:
        """From bytes."""
        ticket, kind, is_timed, of_function, of_arguments, length = _TASK.unpack_from(packet)
        view = memoryview(packet)
        if not of_function and not of_arguments:
            end = _TASK.size + length
            return cls(
                ticket,
                _KINDS[kind],
                bool(is_timed),
                Part(view[_TASK.size : end], []),
                Part(view[end:], []),
            )
        middle = _TASK.size + of_function * LENT.size
        begin = middle + of_arguments * LENT.size
        function = [Lent(*one) for one in LENT.iter_unpack(view[_TASK.size : middle])]
        arguments = [Lent(*one) for one in LENT.iter_unpack(view[middle:begin])]
        end = begin + length
        return cls(
            ticket,
            _KINDS[kind],
            bool(is_timed),
            Part(view[begin:end], function),
            Part(view[end:], arguments),
        )


def with_ticket(packet: bytearray, ticket: int) -> bytearray:
    """The same task under another number."""
    TICKET.pack_into(packet, 0, ticket)
    return packet


def points_to(lent: Lent) -> bytearray:
    """A packet for a task that lies in a block."""
    return TaskPacket(0, Kind.CALL, False, Part(b"", []), Part(b"", [lent])).encode()


def pointed_to(packet: TaskPacket) -> Lent | None:
    """Where the task of a packet lies, if it lies in a block."""
    if packet.kind is Kind.CALL and not packet.function.data and not packet.function.lent:
        return packet.arguments.lent[0]
    return None


STOP = bytes(TaskPacket(0, Kind.STOP, False, Part(b"", []), Part(b"", [])).encode())


class Status(IntEnum):
    """What a worker tells."""

    READY = 0
    """It has been set up; the ticket is the number of its process."""
    DONE = 1
    """The value that a task returned."""
    RAISED = 2
    """What a task raised."""
    NOT_SET_UP = 3
    """What the initializer raised; the worker ends."""
    BYE = 4
    """It ends as it should."""


_STATUSES = tuple(Status)


class ResultPacket(NamedTuple):
    """A worker's message to the pool."""

    ticket: int
    status: Status
    last: bool
    """Whether the worker ends after this task."""
    held_blocks: list[tuple[int, int]]
    """Blocks of this task that something in the worker still holds."""
    ended: list[tuple[int, int]]
    """Blocks of earlier tasks that nothing holds any more."""
    took: int
    """Nanoseconds from the task's begin to its result."""
    result: Part

    def encode(self) -> bytes:
        """As bytes."""
        head = _RESULT.pack(
            self.ticket,
            self.status,
            self.last,
            len(self.held_blocks),
            len(self.ended),
            len(self.result.lent),
            self.took,
        )
        if not (self.held_blocks or self.ended or self.result.lent):
            return head + self.result.data
        tokens = [TOKEN.pack(*token) for token in (*self.held_blocks, *self.ended)]
        lent = [LENT.pack(*one) for one in self.result.lent]
        return b"".join((head, *tokens, *lent, self.result.data))

    @classmethod
    def decode(cls, message: bytes) -> ResultPacket:
        """From bytes."""
        ticket, status, last, kept, ended, lents, took = _RESULT.unpack_from(message)
        view = memoryview(message)
        if not (kept or ended or lents):
            part = Part(view[_RESULT.size :], [])
            return cls(ticket, _STATUSES[status], bool(last), [], [], took, part)
        kept_end = _RESULT.size + kept * TOKEN.size
        ended_end = kept_end + ended * TOKEN.size
        begin = ended_end + lents * LENT.size
        return cls(
            ticket,
            _STATUSES[status],
            bool(last),
            list(TOKEN.iter_unpack(view[_RESULT.size : kept_end])),
            list(TOKEN.iter_unpack(view[kept_end:ended_end])),
            took,
            Part(
                view[begin:],
                [Lent(*one) for one in LENT.iter_unpack(view[ended_end:begin])],
            ),
        )
