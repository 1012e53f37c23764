"""Memory of running jobs: anonymous and shared pages of all their processes."""

from __future__ import annotations

import os
import time

from cputrain.record import Record
from cputrain.runtime.process_tree import read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MIN_INTERVAL_S = 0.5
"""Least time between two samples."""

MAX_OVERHEAD = 0.005
"""Largest part of the time that is spent on sampling: a sample walks all page tables."""

COUNTED = ("Pss_Anon:", "Pss_Shmem:")
"""Kinds of pages that count: pages of files can be dropped."""


class MemorySample(Record):
    """Memory of a job."""

    current_bytes: int
    """Memory of all its processes; pages that several processes map count once."""

    peak_bytes: int
    """The same at the peak of each process, as the kernel has it."""


class TreeMemorySampler:
    """Samples the memory of process trees, as often as is cheap."""

    def __init__(self) -> None:
        self._next_at = 0.0

    def sample(self, roots: Iterable[int]) -> Mapping[int, MemorySample]:
        """Return the memory below each root process; nothing if it is not time yet."""
        started_at, cpu_s = time.monotonic(), time.thread_time()
        if started_at < self._next_at:
            return {}
        children = children_by_parent()
        samples = {root: _sum_below(root, children) for root in roots}
        cpu_s = time.thread_time() - cpu_s
        self._next_at = started_at + max(MIN_INTERVAL_S, cpu_s / MAX_OVERHEAD)
        return samples


def children_by_parent() -> dict[int, list[int]]:
    """Return the processes of the system by their parents; nothing without /proc."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            try:
                parent, _ = read_process(int(name))
            except OSError:  # it has ended meanwhile
                continue
            children.setdefault(parent, []).append(int(name))
    return children


def descendants(root: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    """Yield the processes below a root process.

    Args:
        root: The root process.
        children: Processes of the system by their parents.
    """
    waiting = list(children.get(root, ()))
    while waiting:
        process = waiting.pop()
        waiting += children.get(process, ())
        yield process


def _sum_below(root: int, children: Mapping[int, list[int]]) -> MemorySample:
    current = peak = 0
    for process in descendants(root, children):
        used_bytes = _pages(process)
        current += used_bytes
        peak += used_bytes + _below_peak(process)
    return MemorySample(current_bytes=current, peak_bytes=peak)


def _pages(process: int) -> int:
    """Return the bytes of a process's anonymous and shared pages, in proportion to its share."""
    total = 0
    try:
        with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as file:
            for line in file:
                if line.startswith(COUNTED):
                    total += int(line.split()[1]) * 1024
    except OSError:  # it has ended meanwhile, or belongs to another user
        return 0
    return total


def _below_peak(process: int) -> int:
    """Return by how many bytes the resident set of a process is below its peak."""
    sizes = {}
    try:
        with open(f"/proc/{process}/status", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, _, rest = line.partition(":")
                if name in ("VmHWM", "VmRSS"):
                    sizes[name] = int(rest.split()[0]) * 1024
    except OSError:
        return 0
    return max(0, sizes.get("VmHWM", 0) - sizes.get("VmRSS", 0))
