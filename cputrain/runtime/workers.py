"""Tells whoever asks when a DataLoader's workers have been started, and when they have ended."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Started = Callable[[list[Any]], None]
    Ended = Callable[[], None]


class Watch:
    """Callbacks: told of worker processes before their first task, and when a loader is done."""

    def __init__(self, started: Started, ended: Ended | None = None) -> None:
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        self._kind, self._reset, self._shut = kind, kind._reset, kind._shutdown_workers
        reset, shut = self._reset, self._shut

        def tell_and_reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if first_iter:
                started(iterator._workers)
            reset(iterator, loader, first_iter)

        def shut_and_tell(iterator: Any) -> None:
            running = not getattr(iterator, "_shutdown", True)  # it may have failed to start
            try:
                shut(iterator)
            finally:
                if running and iterator._shutdown and ended is not None:
                    ended()

        self._ours, self._our_shut = tell_and_reset, shut_and_tell
        kind._reset = tell_and_reset
        kind._shutdown_workers = shut_and_tell

    def end(self) -> None:
        """Stop telling; a watch that began later is left alone."""
        if self._kind._reset is self._ours:
            self._kind._reset = self._reset
        if self._kind._shutdown_workers is self._our_shut:
            self._kind._shutdown_workers = self._shut
