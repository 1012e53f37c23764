"""Memory copy benchmark with one pinned thread per CPU, the basis of the measured bandwidth.

Every pinned thread copies between the halves of a private buffer, far larger than the thread's
share of the last-level cache. memmove releases the GIL, so Python threads suffice.
"""

from __future__ import annotations

import os

from cputrain.counting import counted
from cputrain.errors import CputrainError
from cputrain.machine.cpulist import parse_list
from cputrain.machine.source import RootSource, number, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from threading import Barrier

ROUNDS = 5
CACHE_FACTOR = 4
"""Ratio of buffer size to the thread's share of the last-level cache."""

MIN_BUFFER_BYTES = 64 << 20
MIN_USABLE_BUFFER_BYTES = 2 << 20
LARGEST_PAGE_BYTES = 1 << 16  # buffer sizes are multiples of the largest base page size


class CopyRun:
    """One bandwidth measurement of `ROUNDS` rounds with one thread per CPU."""

    def __init__(self, cpus: Sequence[int], max_bytes: int, seconds: float) -> None:
        from threading import Barrier, BrokenBarrierError, Thread

        cache_shares = {cpu: _cache_share(cpu, cpus) for cpu in cpus}
        cache_bytes = max((share for share in cache_shares.values() if share), default=0)
        wanted_bytes = max(CACHE_FACTOR * cache_bytes, MIN_BUFFER_BYTES)
        self.buffer_bytes = (
            min(wanted_bytes, max_bytes // len(cpus)) // LARGEST_PAGE_BYTES * LARGEST_PAGE_BYTES
        )
        if self.buffer_bytes < MIN_USABLE_BUFFER_BYTES:
            raise CputrainError(
                "measuring memory bandwidth",
                f"needs {MIN_USABLE_BUFFER_BYTES >> 20} MiB per thread, in an eighth of the memory",
                found=f"{max_bytes >> 20} MiB for {counted(len(cpus), 'thread')}",
                do="Free memory, or measure with fewer CPUs.",
            )
        self._rates: list[list[float]] = [[] for _ in range(ROUNDS)]
        self._unpinned: list[int] = []
        self._errors: list[BaseException] = []
        barrier = Barrier(len(cpus))

        def run_thread(cpu: int) -> None:
            try:
                self._copy(cpu, barrier, seconds / ROUNDS)
            except BrokenBarrierError:
                pass  # another thread failed and recorded its error
            except BaseException as error:  # raised again in the caller's thread
                self._errors.append(error)
                barrier.abort()

        threads = [Thread(target=run_thread, args=(cpu,), name=f"bandwidth-{cpu}") for cpu in cpus]
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as error:  # "can't start new thread"
            self._errors.append(error)
            barrier.abort()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if self._errors:
            raise CputrainError(
                "measuring memory bandwidth",
                f"needs {counted(len(cpus), 'thread')}, each with a buffer",
                found=repr(self._errors[0]), do="Free memory, or measure with fewer CPUs.",
            )  # fmt: skip
        self.rounds = sorted(sum(round_) for round_ in self._rates)
        self.median = self.rounds[ROUNDS // 2]
        self.how = self._describe(len(cpus), seconds, cache_bytes)

    def _copy(self, cpu: int, barrier: Barrier, seconds: float) -> None:
        import ctypes
        import mmap
        from time import perf_counter

        if hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(0, {cpu})  # 0 is this thread, which ends after the run
            except OSError:
                self._unpinned.append(cpu)
        else:
            self._unpinned.append(cpu)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, self.buffer_bytes, flags=flags) as buffer:
            view = (ctypes.c_char * self.buffer_bytes).from_buffer(buffer)
            low, half = ctypes.addressof(view), self.buffer_bytes // 2
            try:
                # First touch decides the NUMA node of each page.
                ctypes.memset(low, 1, self.buffer_bytes)
                for rates in self._rates:
                    barrier.wait()
                    copies, start = 0, perf_counter()
                    while (now := perf_counter()) - start < seconds or copies < 1:
                        ctypes.memmove(low + half, low, half)
                        copies += 1
                    rates.append(2 * half * copies / (now - start))
            finally:
                del view  # an mmap with exported buffers cannot be closed

    def _describe(self, num_threads: int, seconds: float, cache_bytes: int) -> str:
        sentences = [
            f"{num_threads} {'thread copies' if num_threads == 1 else 'threads copy'} between the "
            f"halves of a buffer of {self.buffer_bytes >> 20} MiB each, {ROUNDS} rounds of "
            f"{seconds / ROUNDS:.3g} s; the result is the median. "
            "A copy of n bytes counts as 2n: n read and n written."
        ]
        if not cache_bytes:
            sentences.append("The size of the last-level cache is unknown.")
        elif self.buffer_bytes < 2 * cache_bytes:
            sentences.append(
                "Memory is scarce, so the buffers are smaller than twice the cache of "
                f"{cache_bytes >> 20} MiB; the bandwidth is overestimated."
            )
        if self._unpinned:
            sentences.append(f"Threads could not be pinned to the CPUs {sorted(self._unpinned)}.")
        return " ".join(sentences)


def available_bytes(limit: int | None) -> int:
    """Return available memory in bytes, at most `limit` and the visible cgroup limits."""
    source = RootSource()
    bounds = [] if limit is None else [limit]
    for line in (text(source, "/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            bounds.append(int(line.split()[1]) << 10)
    # A container sees its own control group as the root group.
    for group in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        group_limit = number(source, group)
        if group_limit is not None:
            bounds.append(group_limit)
    return min(bounds, default=1 << 30)


def _cache_share(cpu: int, cpus: Sequence[int]) -> int:
    """Return a thread's share of its last-level cache in bytes; 0 if unknown."""
    source = RootSource()
    folder = f"/sys/devices/system/cpu/cpu{cpu}/cache"
    last_level, share_bytes = 0, 0
    for name in source.names(folder):
        level = number(source, f"{folder}/{name}/level") or 0
        size = text(source, f"{folder}/{name}/size") or ""
        if level <= last_level or not size.endswith("K") or not size[:-1].isdigit():
            continue
        try:
            sharing = parse_list(text(source, f"{folder}/{name}/shared_cpu_list") or "")
        except ValueError:
            sharing = ()
        num_users = len(set(sharing) & set(cpus)) or 1
        last_level, share_bytes = level, (int(size[:-1]) << 10) // num_users
    return share_bytes
