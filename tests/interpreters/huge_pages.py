"""Memory in large pages: a fork of a process that has torch in memory copies fewer page tables."""

from __future__ import annotations

import ctypes
import os

SIZE = 2 << 20
"""Of a large page, in bytes."""

MADV_COLLAPSE = 25

MIN_GROWTH = 16 << 20
"""Bytes by which a process has grown until it is worth its time to look again."""

MIN_RESIDENT = 0.8
"""Share of a mapping that must be in memory: what is not there would be added."""

_seen = 0
"""Bytes that this process had when it was last looked at."""


def collapse() -> None:
    """Move the objects of this process to large pages, where Linux 6.1 or newer does it.

    A fork copies an entry of the page tables for each page. What a child writes to is copied in
    small pages, as ever.
    """
    global _seen
    if not os.path.exists("/proc/self/smaps"):
        return
    with open("/proc/self/statm") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    if resident < _seen + MIN_GROWTH:
        return
    _seen = resident
    with open("/proc/self/smaps") as file:
        lines = file.read().splitlines()
    madvise = ctypes.CDLL(None).madvise
    for begin, end in _objects(lines):
        first, last = -(-begin // SIZE) * SIZE, end // SIZE * SIZE
        if first < last:
            madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), MADV_COLLAPSE)


def _objects(lines: list[str]) -> list[tuple[int, int]]:
    """Return the heap and the anonymous mappings that are in memory, mostly in small pages."""
    found = []
    begin = end = 0
    sizes: dict[str, int] = {}
    for line in [*lines, "0-0 end"]:
        name, _, rest = line.partition(" ")
        if name.endswith(":"):
            sizes[name] = int(rest.split()[0]) if rest.endswith("kB") else 0
            continue
        size = end - begin
        if (
            size >= SIZE
            and sizes.get("Rss:", 0) << 10 >= MIN_RESIDENT * size
            and sizes.get("AnonHugePages:", 0) << 10 < size - 2 * SIZE
        ):
            found.append((begin, end))
        begin, end, sizes = 0, 0, {}
        fields = rest.split()
        is_private = fields[:1] == ["rw-p"]
        if is_private and (len(fields) == 4 or fields[4] == "[heap]"):
            begin, end = (int(number, 16) for number in name.split("-"))
    return found
