"""Main memory: sizes, huge pages and channels."""

from __future__ import annotations

from cputrain.machine.numa import meminfo
from cputrain.machine.source import text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.channels import Channels
    from cputrain.machine.source import Source

HUGE_PAGE_FOLDER = "/sys/kernel/mm/transparent_hugepage"


class MachineMemory(Record):
    """Facts about main memory."""

    total_bytes: int | None
    """Memory managed by the kernel, in bytes."""

    available_bytes: int | None
    """Memory available without swapping when it was read, in bytes."""

    huge_pages: str | None
    """Transparent huge pages: "always", "madvise" or "never"; None if unsupported."""

    shared_huge_pages: str | None
    """The same for shared memory: "always", "within_size", "advise", "never", …"""

    channels: Channels | None
    """Modules and channels; None if not requested."""


def read_memory(source: Source, channels: Channels | None) -> MachineMemory:
    """Read memory sizes and huge page modes; `channels` are read separately, from more files."""
    sizes = meminfo(source)
    return MachineMemory(
        total_bytes=sizes.get("MemTotal"),
        available_bytes=sizes.get("MemAvailable"),
        huge_pages=_selected_mode(text(source, f"{HUGE_PAGE_FOLDER}/enabled")),
        shared_huge_pages=_selected_mode(text(source, f"{HUGE_PAGE_FOLDER}/shmem_enabled")),
        channels=channels,
    )


def _selected_mode(modes: str | None) -> str | None:
    """Return the word in brackets: "always [madvise] never" gives "madvise"."""
    _, bracket, rest = (modes or "").partition("[")
    return rest.partition("]")[0] or None if bracket else None
