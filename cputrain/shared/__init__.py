"""What processes of one program share: memory without a name, and pipes that never block."""

from __future__ import annotations

from cputrain.shared.arena import (
    ArenaFullError,
    Lent,
    Memory,
    PrivateReader,
    Reader,
    Writer,
    starting_workers,
)
from cputrain.shared.exit_with_owner import OwnerPipe, exit_with_owner
from cputrain.shared.interrupts import deferred_signals, keep_interrupts
from cputrain.shared.links import End, Inbox, Outbox, Sender, pipe
from cputrain.shared.nameless import nameless
from cputrain.shared.one_thread import one_thread
from cputrain.shared.packing import lay_apart, pack, room_for, unpack
from cputrain.shared.shared_tensors import are_kept, forget_opened
from cputrain.shared.threads import start_thread

__all__ = [
    "ArenaFullError",
    "End",
    "Inbox",
    "Lent",
    "Memory",
    "Outbox",
    "OwnerPipe",
    "PrivateReader",
    "Reader",
    "Sender",
    "Writer",
    "are_kept",
    "deferred_signals",
    "exit_with_owner",
    "forget_opened",
    "keep_interrupts",
    "lay_apart",
    "nameless",
    "one_thread",
    "pack",
    "pipe",
    "room_for",
    "start_thread",
    "starting_workers",
    "unpack",
]
