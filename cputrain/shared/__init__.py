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
from cputrain.shared.links import End, Inbox, Outbox, Sender, pipe
from cputrain.shared.one_thread import one_thread
from cputrain.shared.packing import pack, unpack
from cputrain.shared.shared_tensors import are_kept, forget_opened

__all__ = [
    "ArenaFullError",
    "End",
    "Inbox",
    "Lent",
    "Memory",
    "Outbox",
    "PrivateReader",
    "Reader",
    "Sender",
    "Writer",
    "are_kept",
    "forget_opened",
    "one_thread",
    "pack",
    "pipe",
    "starting_workers",
    "unpack",
]
