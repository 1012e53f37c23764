"""Callbacks for the start and the end of a DataLoader's worker processes."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Started = Callable[[list[Any]], None]
    Ended = Callable[[], None]


class WorkerWatch:
    """Patch of torch's multiprocessing iterator that calls back when workers start and end.

    Args:
        started: Called with the worker processes before their first task.
        ended: Called when the workers of an iterator have been shut down.
    """

    def __init__(self, started: Started, ended: Ended | None = None) -> None:
        from torch.utils.data import dataloader

        iterator_class: Any = dataloader._MultiProcessingDataLoaderIter
        self._iterator_class, self._reset, self._shutdown = (
            iterator_class,
            iterator_class._reset,
            iterator_class._shutdown_workers,
        )
        reset, shutdown = self._reset, self._shutdown

        def call_and_reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if first_iter:
                started(iterator._workers)
            reset(iterator, loader, first_iter)

        def shutdown_and_call(iterator: Any) -> None:
            is_running = not getattr(
                iterator, "_shutdown", True
            )  # missing if the workers failed to start
            try:
                shutdown(iterator)
            finally:
                if is_running and iterator._shutdown and ended is not None:
                    ended()

        self._reset_replacement, self._shutdown_replacement = call_and_reset, shutdown_and_call
        iterator_class._reset = call_and_reset
        iterator_class._shutdown_workers = shutdown_and_call

    def end(self) -> None:
        """Restore torch's methods; a watch that was started later is left in place."""
        if self._iterator_class._reset is self._reset_replacement:
            self._iterator_class._reset = self._reset
        if self._iterator_class._shutdown_workers is self._shutdown_replacement:
            self._iterator_class._shutdown_workers = self._shutdown
