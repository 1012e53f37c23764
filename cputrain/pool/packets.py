"""The packets that go through a pool's pipes.

All workers read the same task pipe. It is in packet mode (O_DIRECT): each read() returns exactly
one packet, so readers need no lock, and a killed worker cannot leave a lock held.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from cputrain.ipc import BlockRef
from cputrain.ipc.arena import BLOCK_REF

LONGEST = 4096
"""Maximum bytes of a packet; a longer task is put into a block that the packet points to."""

TICKET = struct.Struct("<Q")
"""A task's ticket, the first field of its packet."""

TOKEN = struct.Struct("<QI")
"""The token of an arena block."""

_TASK = struct.Struct("<QBBIII")
_RESULT = struct.Struct("<QBBIIIQ")


class PacketKind(IntEnum):
    """How a function is applied to what a task holds."""

    CALL = 0
    """`function(*args, **kwds)` for one `(args, kwds)`."""
    EACH = 1
    """`function(item)` for each item."""
    STAR = 2
    """`function(*item)` for each item."""
    APART = 3
    """`function(item)` for each separately pickled item, with one outcome per item (a bundle)."""
    ATOMS = 4
    """As APART, with all items, which are atoms, in one pickle."""
    STOP = 5
    """Call no function: the worker exits."""
    JOINT_CALL = 6
    """As CALL, with the function and the arguments in one pickle."""
    JOINT_EACH = 7
    JOINT_STAR = 8
    JOINT_APART = 9
    """As APART, with a copy of the function in each item's pickle."""


_KINDS = tuple(PacketKind)

JOINT = {
    PacketKind.CALL: PacketKind.JOINT_CALL,
    PacketKind.EACH: PacketKind.JOINT_EACH,
    PacketKind.STAR: PacketKind.JOINT_STAR,
    PacketKind.APART: PacketKind.JOINT_APART,
}

APPLIED_AS = {joint: kind for kind, joint in JOINT.items()}
"""The kind without a joint pickle, for each joint kind."""


class PacketPayload(NamedTuple):
    """A packed object: pickle and arena blocks; the last block is the pickle if `data` is empty."""

    data: bytes | memoryview
    blocks: list[BlockRef]


class TaskPacket(NamedTuple):
    """A task as it is written to the task pipe."""

    ticket: int
    kind: PacketKind
    is_timed: bool
    """Whether the worker writes the begin of each item to its slot, for a timeout."""
    function: PacketPayload
    arguments: PacketPayload

    def encode(self) -> bytearray:
        """Return the packet's bytes, which begin with the ticket."""
        head = _TASK.pack(
            self.ticket,
            self.kind,
            self.is_timed,
            len(self.function.blocks),
            len(self.arguments.blocks),
            len(self.function.data),
        )
        blocks = [
            BLOCK_REF.pack(*block) for block in (*self.function.blocks, *self.arguments.blocks)
        ]
        return bytearray().join((head, *blocks, self.function.data, self.arguments.data))

    @classmethod
    def decode(cls, packet: bytes | memoryview) -> TaskPacket:
        """Return the packet that the bytes hold."""
        ticket, kind, is_timed, num_function_blocks, num_argument_blocks, length = (
            _TASK.unpack_from(packet)
        )
        view = memoryview(packet)
        if not num_function_blocks and not num_argument_blocks:
            end = _TASK.size + length
            return cls(
                ticket,
                _KINDS[kind],
                bool(is_timed),
                PacketPayload(view[_TASK.size : end], []),
                PacketPayload(view[end:], []),
            )
        function_end = _TASK.size + num_function_blocks * BLOCK_REF.size
        begin = function_end + num_argument_blocks * BLOCK_REF.size
        function = [
            BlockRef(*fields) for fields in BLOCK_REF.iter_unpack(view[_TASK.size : function_end])
        ]
        arguments = [
            BlockRef(*fields) for fields in BLOCK_REF.iter_unpack(view[function_end:begin])
        ]
        end = begin + length
        return cls(
            ticket,
            _KINDS[kind],
            bool(is_timed),
            PacketPayload(view[begin:end], function),
            PacketPayload(view[end:], arguments),
        )


def with_ticket(packet: bytearray, ticket: int) -> bytearray:
    """Set the ticket in an encoded packet, in place, and return the packet."""
    TICKET.pack_into(packet, 0, ticket)
    return packet


def points_to(block: BlockRef) -> bytearray:
    """Return a packet that points to a block with the encoded task."""
    return TaskPacket(
        0, PacketKind.CALL, False, PacketPayload(b"", []), PacketPayload(b"", [block])
    ).encode()


def pointed_to(packet: TaskPacket) -> BlockRef | None:
    """Return the block with the encoded task, or None if the packet holds the task itself."""
    if packet.kind is PacketKind.CALL and not packet.function.data and not packet.function.blocks:
        return packet.arguments.blocks[0]
    return None


STOP = bytes(
    TaskPacket(0, PacketKind.STOP, False, PacketPayload(b"", []), PacketPayload(b"", [])).encode()
)


class Status(IntEnum):
    """The kind of a worker's message."""

    READY = 0
    """The worker has been set up; the ticket field holds its process ID."""
    DONE = 1
    """A task returned a value."""
    RAISED = 2
    """A task raised an exception."""
    NOT_SET_UP = 3
    """The initializer raised an exception; the worker exits."""
    BYE = 4
    """The worker exits as requested."""


_STATUSES = tuple(Status)


class ResultPacket(NamedTuple):
    """A worker's message to the pool."""

    ticket: int
    status: Status
    last: bool
    """Whether the worker exits after this task."""
    held_blocks: list[tuple[int, int]]
    """Tokens of this task's argument blocks that objects in the worker still refer to."""
    released_blocks: list[tuple[int, int]]
    """Tokens of earlier tasks' argument blocks that are no longer referred to."""
    elapsed_ns: int
    """Nanoseconds from the task's begin to its result."""
    result: PacketPayload

    def encode(self) -> bytes:
        """Return the message's bytes."""
        head = _RESULT.pack(
            self.ticket,
            self.status,
            self.last,
            len(self.held_blocks),
            len(self.released_blocks),
            len(self.result.blocks),
            self.elapsed_ns,
        )
        if not (self.held_blocks or self.released_blocks or self.result.blocks):
            return head + self.result.data
        tokens = [TOKEN.pack(*token) for token in (*self.held_blocks, *self.released_blocks)]
        blocks = [BLOCK_REF.pack(*block) for block in self.result.blocks]
        return b"".join((head, *tokens, *blocks, self.result.data))

    @classmethod
    def decode(cls, message: bytes) -> ResultPacket:
        """Return the packet that the bytes hold."""
        ticket, status, last, num_held, num_released, num_result_blocks, elapsed_ns = (
            _RESULT.unpack_from(message)
        )
        view = memoryview(message)
        if not (num_held or num_released or num_result_blocks):
            payload = PacketPayload(view[_RESULT.size :], [])
            return cls(ticket, _STATUSES[status], bool(last), [], [], elapsed_ns, payload)
        held_end = _RESULT.size + num_held * TOKEN.size
        released_end = held_end + num_released * TOKEN.size
        begin = released_end + num_result_blocks * BLOCK_REF.size
        return cls(
            ticket,
            _STATUSES[status],
            bool(last),
            list(TOKEN.iter_unpack(view[_RESULT.size : held_end])),
            list(TOKEN.iter_unpack(view[held_end:released_end])),
            elapsed_ns,
            PacketPayload(
                view[begin:],
                [BlockRef(*fields) for fields in BLOCK_REF.iter_unpack(view[released_end:begin])],
            ),
        )
