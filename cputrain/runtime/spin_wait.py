"""Lets idle OpenMP threads sleep sooner once loader workers compete with them for cores.

How long libgomp spins is fixed when it is loaded, with one exception that its manual documents
under GOMP_SPINCOUNT: while a process has more OpenMP threads than CPUs, waits are short. So a
second team of threads is made when workers are started. It sleeps for the rest of the run, and
its being there is all that counts.
"""

from __future__ import annotations

import os

from cputrain.runtime.library_variables import was_set
from cputrain.runtime.openmp import loaded_runtimes
from cputrain.runtime.workers import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "short_waits"


class SpinWait:
    """The second team, once there is cause for it."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._end: Any = None
        self._watch = Watch(self._started)

    def _started(self, workers: list[Any]) -> None:
        threads = self._torch.get_num_threads()
        crowded = threads + len(workers) > len(os.sched_getaffinity(0))
        if self._end is None and threads > 1 and crowded and _has_libgomp():
            self._make_team()

    def _make_team(self) -> None:
        # a bare thread: one of threading's would be in the script's threading.enumerate()
        import _thread

        ready, end = _thread.allocate_lock(), _thread.allocate_lock()
        ready.acquire()
        end.acquire()

        def rest() -> None:
            try:
                # any operator that is split among threads makes the team
                self._torch.ones(1 << 20, dtype=self._torch.float32, device="cpu").add_(1)
            finally:
                ready.release()
            end.acquire()

        _thread.start_new_thread(rest, ())
        ready.acquire()
        self._end = end

    def describe(self) -> str:
        if was_set("GOMP_SPINCOUNT"):
            return "short waits"
        return "" if self._end is None else "short waits beside loader workers"

    def undo(self) -> None:
        self._watch.end()
        if self._end is not None:
            self._end.release()
            self._end = None


def _has_libgomp() -> bool:
    return any("libgomp" in path for path in loaded_runtimes())


def apply(torch: ModuleType, value: object) -> SpinWait | None:
    """Wait for workers, where the CPUs of a process can be told."""
    return SpinWait(torch) if value and hasattr(os, "sched_getaffinity") else None
