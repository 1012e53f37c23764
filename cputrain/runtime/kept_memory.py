"""Keep freed memory while the script trains, and trim what its steps no longer need.

A training step allocates again what the last one freed. glibc returns large blocks to the kernel at
once, and every step pays page faults to get them back. From the first optimizer step on, malloc's
thresholds are raised in this process, so that large blocks are allocated from the heap and stay
there. Code that runs before has glibc's default thresholds; so have child processes, forked ones
included.

Kept memory is returned to the kernel

- when less is in use than before: the script has deleted a model or a data set;
- periodically, to measure what a step needs: at most 1 % of the time is spent on the page faults;
- when memory is short on the machine or in a control group, until it no longer is;
- beyond a budget, which all programs of a launch share.
"""

from __future__ import annotations

import os
import time

from cputrain.runtime.glibc import Malloc
from cputrain.runtime.memory_pressure import MemoryPressure
from cputrain.runtime.patching import never_compile
from cputrain.runtime.process_tree import num_programs

NUM_WARMUP_STEPS = 3
"""Memory is kept from the first step on; the heap is trimmed once after the second."""

CHECK_INTERVAL_S = 1.0
BUDGET_INTERVAL_S = 10.0

MIN_KEPT_BYTES = 64 << 20
"""Less kept memory is not trimmed."""

TOUCHED_BYTES_PER_S = 1e9
"""First-touch bandwidth of trimmed memory: the slowest measured."""

MAX_OVERHEAD = 0.01
"""Fraction of the time that may be spent on first touch of trimmed memory."""


class KeptMemory:
    """The thresholds of this process's malloc, and the checks that trim kept memory.

    Args:
        keep_bytes: What all programs of the launch may keep together.
    """

    def __init__(self, keep_bytes: int) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self.uses_huge_pages = False
        """Whether huge pages are requested; set by the setting `huge_pages`."""
        self._malloc = Malloc()
        self._pressure = MemoryPressure()
        self._keep_bytes = keep_bytes
        self._start()
        self._hook = register_optimizer_step_post_hook(self._after_step)
        never_compile(KeptMemory._after_step)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _start(self) -> None:
        """Reset the state to that of a process that has not trained yet."""
        self._num_steps = 0
        self.is_keeping = False
        self.has_huge_pages = False
        self._budget_bytes = self._keep_bytes
        self._next_budget = 0.0
        self._next_check = 0.0
        self._trimmed_at = 0.0
        self._resident_after_trim = 0
        self._in_use_after_trim = 0
        self._max_in_use = 0

    def _after_step(self, *_: object) -> None:
        if self._num_steps < NUM_WARMUP_STEPS:
            self._warm_up()
        elif time.monotonic() >= self._next_check:
            self._check()

    def _warm_up(self) -> None:
        self._num_steps += 1
        if self._num_steps == 1:
            self._keep()
        elif self.is_keeping:
            self._advise_huge_pages()
            if self._num_steps == 2:
                self._trim(time.monotonic())

    def _keep(self) -> None:
        if _is_address_space_limited():
            return
        self._malloc.keep(self._budget_bytes)
        self.is_keeping = True

    def _check(self) -> None:
        """Trim memory that is no longer needed, and stop keeping it while memory is short."""
        now = time.monotonic()
        self._next_check = now + CHECK_INTERVAL_S
        if self._pressure.is_high():
            if self.is_keeping:
                self._malloc.restore_defaults()
                self._malloc.trim()
                self.is_keeping = False
            return
        if not self.is_keeping:
            self._keep()
            return
        self._advise_huge_pages()
        in_use = self._malloc.in_use_bytes() or 0
        self._max_in_use = max(self._max_in_use, in_use)
        # what the script has freed since the last trim does not count as needed
        freed = max(0, self._in_use_after_trim - in_use)
        kept = _resident_bytes() - (self._resident_after_trim - freed)
        if kept < MIN_KEPT_BYTES:
            return
        if now >= self._next_budget:
            self._next_budget = now + BUDGET_INTERVAL_S
            self._share_budget()
        has_shrunk = in_use < self._max_in_use - MIN_KEPT_BYTES
        probe_after = max(BUDGET_INTERVAL_S, kept / TOUCHED_BYTES_PER_S / MAX_OVERHEAD)
        is_probed = now >= self._trimmed_at + probe_after
        if has_shrunk or kept > self._budget_bytes or is_probed:
            self._trim(now)

    def _share_budget(self) -> None:
        budget_bytes = self._keep_bytes // num_programs()
        if budget_bytes != self._budget_bytes:
            self._budget_bytes = budget_bytes
            self._malloc.keep(budget_bytes)

    def _trim(self, now: float) -> None:
        """Trim the heap, and reset the measurements of resident and used memory."""
        self._malloc.trim()
        self._resident_after_trim = _resident_bytes()
        self._max_in_use = self._in_use_after_trim = self._malloc.in_use_bytes() or 0
        self._trimmed_at = now

    def _advise_huge_pages(self) -> None:
        if self.uses_huge_pages:
            self.has_huge_pages = self._malloc.advise_huge_pages()

    def _after_fork(self) -> None:
        """Restore glibc's defaults in a forked child, and return the memory kept by the parent."""
        if self.is_keeping:
            self._malloc.abandon()
        self._start()

    def describe(self) -> str:
        return "freed memory kept for the next step (glibc malloc)" if self.is_keeping else ""

    def undo(self) -> None:
        """Trim the heap, and restore glibc's default thresholds."""
        self._hook.remove()
        if self.is_keeping:
            self._malloc.restore_defaults()
            self._malloc.trim()
            self.is_keeping = False


class HugePages:
    """The request for huge pages, which KeptMemory applies as the heap grows."""

    def __init__(self, kept_memory: KeptMemory) -> None:
        self._kept_memory = kept_memory
        kept_memory.uses_huge_pages = True

    def describe(self) -> str:
        kept = self._kept_memory
        return "huge pages" if kept.is_keeping and kept.has_huge_pages else ""

    def undo(self) -> None:
        """Stop requesting huge pages; pages of the heap stay as they are."""
        self._kept_memory.uses_huge_pages = False


class PreloadedAllocator:
    """Report of an allocator library that the launcher has preloaded."""

    def __init__(self, path: str) -> None:
        self._name = path.rpartition("/")[2]

    def describe(self) -> str:
        try:
            with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
                is_loaded = any(self._name in line for line in maps)
        except OSError:  # not Linux: assume that it was loaded
            is_loaded = True
        return f"{self._name} as allocator" if is_loaded else ""

    def undo(self) -> None:
        raise RuntimeError("a library stays in the process that began with it")


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _is_address_space_limited() -> bool:
    """Return whether RLIMIT_AS or RLIMIT_DATA is set: a fragmented heap could exceed it."""
    import resource

    names = ("RLIMIT_AS", "RLIMIT_DATA")
    return any(
        resource.getrlimit(getattr(resource, name))[0] != resource.RLIM_INFINITY
        for name in names
        if hasattr(resource, name)
    )
