"""What processes of one program share: memory without a name, and pipes that never block."""

from __future__ import annotations

from cputrain.ipc.arena import (
    ArenaFullError,
    ArenaMemory,
    BlockRef,
    PrivateReader,
    Reader,
    Writer,
    starting_workers,
)
from cputrain.ipc.exit_with_owner import OwnerPipe, exit_with_owner
from cputrain.ipc.interrupts import deferred_signals, keep_interrupts
from cputrain.ipc.links import End, Inbox, Outbox, Sender, pipe
from cputrain.ipc.memfd import create_memfd
from cputrain.ipc.one_thread import one_thread
from cputrain.ipc.serialization import pack, room_for, spill, unpack
from cputrain.ipc.shared_tensors import are_kept, forget_opened
from cputrain.ipc.threads import start_thread

__all__ = [
    "ArenaFullError",
    "ArenaMemory",
    "BlockRef",
    "End",
    "Inbox",
    "Outbox",
    "OwnerPipe",
    "PrivateReader",
    "Reader",
    "Sender",
    "Writer",
    "are_kept",
    "create_memfd",
    "deferred_signals",
    "exit_with_owner",
    "forget_opened",
    "keep_interrupts",
    "one_thread",
    "pack",
    "pipe",
    "room_for",
    "spill",
    "start_thread",
    "starting_workers",
    "unpack",
]
