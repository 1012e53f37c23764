"""Places the workers of DataLoaders, and gives compute the cores they leave."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "loader_cores"


class PlacedWorkers:
    """DataLoader workers on the cores that the plan keeps for them."""

    def __init__(self, torch: ModuleType, cpus: tuple[int, ...], compute_threads: int) -> None:
        from torch.utils.data import dataloader

        self._torch = torch
        self._cpus = cpus
        self._compute_threads = compute_threads
        self._most = 0
        self._kind: Any = dataloader._MultiProcessingDataLoaderIter
        self._start = self._kind.__init__
        placed = self

        def start(iterator: Any, loader: Any) -> None:
            placed._make_room(loader.num_workers)
            # workers inherit the mask of the thread that starts them, so it is lent to them
            own = os.sched_getaffinity(0)
            os.sched_setaffinity(0, placed._cpus)
            try:
                placed._start(iterator, loader)
            finally:
                os.sched_setaffinity(0, own)

        self._kind.__init__ = start

    def _make_room(self, workers: int) -> None:
        self._most = max(self._most, workers)
        if self._torch.get_num_threads() > self._compute_threads:
            self._torch.set_num_threads(self._compute_threads)

    def describe(self) -> str:
        if not self._most:
            return ""
        from cputrain.machine.cpulist import format_list

        return f"{self._most} loader workers on CPUs {format_list(self._cpus)}"

    def undo(self) -> None:
        self._kind.__init__ = self._start


def apply(torch: ModuleType, value: object) -> PlacedWorkers | None:
    """Place workers where the plan keeps cores for them; torch gives each one thread itself."""
    if not isinstance(value, dict) or not value.get("cpus") or not hasattr(os, "sched_setaffinity"):
        return None
    return PlacedWorkers(torch, tuple(value["cpus"]), int(value["compute_threads"]))
