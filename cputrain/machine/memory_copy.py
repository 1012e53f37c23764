"""Memory copy benchmark with one pinned thread per CPU, the basis of the measured bandwidth.

Every pinned thread copies between the halves of a private buffer, far larger than the thread's
share of the last-level cache. memmove releases the GIL, so Python threads suffice.
"""

from __future__ import annotations

import os

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

LEAST_BUFFER = 64 << 20
TOO_SMALL_BUFFER = 2 << 20
PAGES = 1 << 16  # buffers are multiples of it: the largest base page there is


class CopyRun:
    """One bandwidth measurement of `ROUNDS` rounds with one thread per CPU."""

    def __init__(self, cpus: Sequence[int], cap: int, seconds: float) -> None:
        from threading import Barrier, BrokenBarrierError, Thread

        caches = {cpu: _cache_share(cpu, cpus) for cpu in cpus}
        cache = max((share for share in caches.values() if share), default=0)
        wanted = max(CACHE_FACTOR * cache, LEAST_BUFFER)
        self.buffer_bytes = min(wanted, cap // len(cpus)) // PAGES * PAGES
        if self.buffer_bytes < TOO_SMALL_BUFFER:
            raise CputrainError(
                "measuring memory bandwidth",
                f"takes {TOO_SMALL_BUFFER >> 20} MiB a thread, and an eighth of the memory at most",
                found=f"{cap >> 20} MiB for {len(cpus)} threads",
                do="Free memory, or measure with fewer CPUs.",
            )
        self._rates: list[list[float]] = [[] for _ in range(ROUNDS)]
        self._unpinned: list[int] = []
        self._faults: list[BaseException] = []
        barrier = Barrier(len(cpus))

        def work(cpu: int) -> None:
            try:
                self._copy(cpu, barrier, seconds / ROUNDS)
            except BrokenBarrierError:
                pass  # another thread failed, and says why
            except BaseException as fault:  # carried to the caller's thread
                self._faults.append(fault)
                barrier.abort()

        threads = [Thread(target=work, args=(cpu,), name=f"bandwidth-{cpu}") for cpu in cpus]
        try:
            for thread in threads:
                thread.start()
        except RuntimeError as fault:  # "can't start new thread"
            self._faults.append(fault)
            barrier.abort()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        if self._faults:
            raise CputrainError(
                "measuring memory bandwidth", f"needs {len(cpus)} threads with a buffer each",
                found=repr(self._faults[0]), do="Free memory, or measure with fewer CPUs.",
            )  # fmt: skip
        self.rounds = sorted(sum(round_) for round_ in self._rates)
        self.median = self.rounds[ROUNDS // 2]
        self.how = self._how(len(cpus), seconds, cache)

    def _copy(self, cpu: int, barrier: Barrier, seconds: float) -> None:
        import ctypes
        import mmap
        from time import perf_counter

        if hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(0, {cpu})  # 0: this thread alone, and it ends with us
            except OSError:
                self._unpinned.append(cpu)
        else:
            self._unpinned.append(cpu)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        with mmap.mmap(-1, self.buffer_bytes, flags=flags) as buffer:
            view = (ctypes.c_char * self.buffer_bytes).from_buffer(buffer)
            low, half = ctypes.addressof(view), self.buffer_bytes // 2
            try:
                # the first touch decides on which NUMA node a page lies
                ctypes.memset(low, 1, self.buffer_bytes)
                for rates in self._rates:
                    barrier.wait()
                    copies, start = 0, perf_counter()
                    while (now := perf_counter()) - start < seconds or copies < 1:
                        ctypes.memmove(low + half, low, half)
                        copies += 1
                    rates.append(2 * half * copies / (now - start))
            finally:
                del view  # else the map cannot be closed

    def _how(self, threads: int, seconds: float, cache: int) -> str:
        said = [
            f"{threads} {'thread copies' if threads == 1 else 'threads copy'} between the halves "
            f"of a buffer of {self.buffer_bytes >> 20} MiB each, {ROUNDS} rounds of "
            f"{seconds / ROUNDS:.3g} s, of which the median counts; "
            "a copy of n bytes counts as 2n, n read and n written."
        ]
        if not cache:
            said.append("The size of the last-level cache is not known.")
        elif self.buffer_bytes < 2 * cache:
            said.append(
                f"Memory is scarce, and the buffers are below twice the cache's {cache >> 20} MiB: "
                "the numbers are partly the cache's, and too high."
            )
        if self._unpinned:
            said.append(f"Threads could not be pinned to the CPUs {sorted(self._unpinned)}.")
        return " ".join(said)


def available_bytes(limit: int | None) -> int:
    """Return available memory in bytes, at most `limit` and the visible cgroup limits."""
    source = RootSource()
    found = [] if limit is None else [limit]
    for line in (text(source, "/proc/meminfo") or "").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    # the limits of a container, which sees its own group as the root one
    for group in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        allowed = number(source, group)
        if allowed is not None:
            found.append(allowed)
    return min(found, default=1 << 30)


def _cache_share(cpu: int, cpus: Sequence[int]) -> int:
    """Return a thread's share of its last-level cache in bytes; 0 if unknown."""
    source = RootSource()
    folder = f"/sys/devices/system/cpu/cpu{cpu}/cache"
    last, share = 0, 0
    for name in source.names(folder):
        level = number(source, f"{folder}/{name}/level") or 0
        size = text(source, f"{folder}/{name}/size") or ""
        if level <= last or not size.endswith("K") or not size[:-1].isdigit():
            continue
        try:
            sharing = parse_list(text(source, f"{folder}/{name}/shared_cpu_list") or "")
        except ValueError:
            sharing = ()
        users = len(set(sharing) & set(cpus)) or 1
        last, share = level, (int(size[:-1]) << 10) // users
    return share
