"""Pin DataLoader workers to their CPUs, and reduce compute threads while they run."""

from __future__ import annotations

import os

from cputrain.runtime.workers import WorkerWatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


class PlacedWorkers:
    """DataLoader workers pinned to the CPUs that the plan reserves for them.

    Workers are pinned once they run, before their first batch. Changing the parent's CPU mask while
    it starts them would pass the mask to every thread the parent starts meanwhile, OpenMP's
    included, and would not reach a child of the fork server.
    """

    def __init__(self, torch: ModuleType, cpus: tuple[int, ...], compute_threads: int) -> None:
        self._torch = torch
        self._cpus = cpus
        self._compute_threads = compute_threads
        self._max_workers = 0
        self._num_running = 0
        self._previous_threads = 0
        self._watch = WorkerWatch(self._pin, self._release)

    def _pin(self, workers: list[Any]) -> None:
        self._num_running += 1
        num_threads = self._torch.get_num_threads()
        if num_threads > self._compute_threads:
            self._previous_threads = num_threads
            self._torch.set_num_threads(self._compute_threads)
        for worker in workers:
            try:
                os.sched_setaffinity(worker.pid, self._cpus)
            except OSError:  # the worker has ended, which torch reports, or the CPUs are gone
                return
        self._max_workers = max(self._max_workers, len(workers))

    def _release(self) -> None:
        """Restore the number of compute threads when the last workers have ended."""
        self._num_running -= 1
        if not self._num_running and self._previous_threads:
            if (
                self._torch.get_num_threads() == self._compute_threads
            ):  # otherwise the script has set it
                self._torch.set_num_threads(self._previous_threads)
            self._previous_threads = 0

    def describe(self) -> str:
        if not self._max_workers:
            return ""
        from cputrain.machine.cpulist import format_list

        return f"{self._max_workers} loader workers on CPUs {format_list(self._cpus)}"

    def undo(self) -> None:
        self._watch.end()
