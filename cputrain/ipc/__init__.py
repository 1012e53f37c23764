"""Inter-process communication: shared memory, pickles with out-of-band buffers, pipes, signals."""

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
from cputrain.ipc.interrupts import deferred_signals, redeliver_interrupts
from cputrain.ipc.links import End, Inbox, Outbox, Sender, pipe
from cputrain.ipc.memfd import create_memfd
from cputrain.ipc.serialization import empty_in_arena, pack, spill, unpack
from cputrain.ipc.shared_tensors import forget_opened_storages, has_opened_storages
from cputrain.ipc.thread_limits import limit_to_one_thread
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
    "create_memfd",
    "deferred_signals",
    "empty_in_arena",
    "exit_with_owner",
    "forget_opened_storages",
    "has_opened_storages",
    "limit_to_one_thread",
    "pack",
    "pipe",
    "redeliver_interrupts",
    "spill",
    "start_thread",
    "starting_workers",
    "unpack",
]
