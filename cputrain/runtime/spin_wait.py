"""Shorten the spin-wait of idle OpenMP threads once loader workers compete for cores.

libgomp reads its spin count when it is loaded, with one exception that its manual documents under
GOMP_SPINCOUNT: while a process has more OpenMP threads than CPUs (oversubscription), it spins only
briefly. So a second thread team is started with the loader workers. It sleeps for the rest of the
run: its existence alone shortens the spin-wait.
"""

from __future__ import annotations

import os

from cputrain.runtime.library_variables import was_set
from cputrain.runtime.openmp import loaded_runtimes
from cputrain.runtime.workers import WorkerWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class SpinWait:
    """The second thread team, started with the first workers that oversubscribe the CPUs."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch
        self._end_lock: Any = None
        self._watch = WorkerWatch(self._on_workers_start)

    def _on_workers_start(self, workers: list[Any]) -> None:
        num_threads = self._torch.get_num_threads()
        is_oversubscribed = num_threads + len(workers) > len(os.sched_getaffinity(0))
        if self._end_lock is None and num_threads > 1 and is_oversubscribed and _has_libgomp():
            self._start_team()

    def _start_team(self) -> None:
        # _thread: a threading.Thread would appear in the script's threading.enumerate()
        import _thread

        ready, end_lock = _thread.allocate_lock(), _thread.allocate_lock()
        ready.acquire()
        end_lock.acquire()

        def run_team() -> None:
            try:
                # any parallel operator starts the team
                self._torch.ones(1 << 20, dtype=self._torch.float32, device="cpu").add_(1)
            finally:
                ready.release()
            end_lock.acquire()

        _thread.start_new_thread(run_team, ())
        ready.acquire()
        self._end_lock = end_lock

    def describe(self) -> str:
        if was_set("GOMP_SPINCOUNT"):
            return "short waits"
        return "" if self._end_lock is None else "short waits beside loader workers"

    def undo(self) -> None:
        self._watch.end()
        if self._end_lock is not None:
            self._end_lock.release()
            self._end_lock = None


def _has_libgomp() -> bool:
    return any("libgomp" in path for path in loaded_runtimes())
