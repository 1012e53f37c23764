"""Memory of this process as its limit counts it: pages that cannot be dropped."""

from __future__ import annotations

import os
from contextlib import suppress

from cputrain.record import Record

STATUS = "/proc/self/status"

RESET_PEAK = "5"
"""What is written to /proc/self/clear_refs to have the kernel measure the peak anew."""


class ProcessMemory(Record):
    """Resident memory of this process without pages of files."""

    current_bytes: int
    """What is resident now."""

    peak_bytes: int
    """The largest since the start of the process, or since `reset_peak`."""


def process_memory() -> ProcessMemory:
    """Return the memory of this process; zeros without /proc."""
    sizes = dict.fromkeys(("VmHWM", "VmRSS", "RssFile"), 0)
    with suppress(OSError), open(STATUS, encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in sizes:
                sizes[name] = int(rest.split()[0]) * 1024
    return ProcessMemory(
        current_bytes=sizes["VmRSS"] - sizes["RssFile"],
        peak_bytes=sizes["VmHWM"] - sizes["RssFile"],
    )


def anonymous_bytes() -> int:
    """Return the resident memory of this process without files and shared memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        _, resident, shared, *_ = file.read().split()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def reset_peak() -> None:
    """Have the peak be that from now on; without /proc it stays."""
    with suppress(OSError), open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write(RESET_PEAK)
