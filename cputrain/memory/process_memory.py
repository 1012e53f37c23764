"""Memory of a process as its limit counts it: without pages of files, which can be dropped."""

from __future__ import annotations

import os
from contextlib import suppress

STATUS = "/proc/self/status"

RESET_PEAK = "5"
"""What is written to /proc/self/clear_refs to have the kernel measure the peak anew."""


def anonymous_bytes(process: int | str = "self") -> int:
    """Return the resident memory of a process without pages of files and shared memory."""
    with open(f"/proc/{process}/statm", encoding="ascii") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def peak_anonymous_bytes() -> int:
    """Return the largest such memory since the start of the process, or since `reset_peak`.

    Without /proc it is 0.
    """
    sizes = {"VmHWM": 0, "RssFile": 0}
    with suppress(OSError), open(STATUS, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in sizes:
                sizes[name] = int(rest.split()[0]) * 1024
    return sizes["VmHWM"] - sizes["RssFile"]


def reset_peak() -> None:
    """Have the peak be that from now on; without /proc it stays."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write(RESET_PEAK)
