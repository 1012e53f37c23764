"""Places the workers of DataLoaders, and gives compute the cores they leave."""

from __future__ import annotations

import os

from cputrain.runtime.workers import Watch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "loader_cores"


class PlacedWorkers:
    """DataLoader workers on the cores that the plan keeps for them.

    They are moved once they run, before they are asked for their first batch. Lending them the
    parent's own mask would leave it on every thread the parent starts meanwhile, OpenMP's too, and
    would not reach a child of the fork server.
    """

    def __init__(self, torch: ModuleType, cpus: tuple[int, ...], compute_threads: int) -> None:
        self._torch = torch
        self._cpus = cpus
        self._compute_threads = compute_threads
        self._most = 0
        self._running = 0
        self._before = 0
        self._watch = Watch(self._place, self._release)

    def _place(self, workers: list[Any]) -> None:
        self._running += 1
        threads = self._torch.get_num_threads()
        if threads > self._compute_threads:
            self._before = threads
            self._torch.set_num_threads(self._compute_threads)
        for worker in workers:
            try:
                os.sched_setaffinity(worker.pid, self._cpus)
            except OSError:  # it has ended already, or those CPUs went away: torch will tell
                return
        self._most = max(self._most, len(workers))

    def _release(self) -> None:
        """The cores are free again: compute has the threads that it had before."""
        self._running -= 1
        if not self._running and self._before:
            if self._torch.get_num_threads() == self._compute_threads:  # else the script chose
                self._torch.set_num_threads(self._before)
            self._before = 0

    def describe(self) -> str:
        if not self._most:
            return ""
        from cputrain.machine.cpulist import format_list

        return f"{self._most} loader workers on CPUs {format_list(self._cpus)}"

    def undo(self) -> None:
        self._watch.end()


def apply(torch: ModuleType, value: object) -> PlacedWorkers | None:
    """Place workers where the plan keeps cores for them; torch gives each one thread itself."""
    if not isinstance(value, dict) or not value.get("cpus") or not hasattr(os, "sched_setaffinity"):
        return None
    return PlacedWorkers(torch, tuple(value["cpus"]), int(value["compute_threads"]))
