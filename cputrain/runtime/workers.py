"""Tells whoever asks when a DataLoader's workers have been started."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Started = Callable[[list[Any]], None]


class Watch:
    """A callback, told of the worker processes before they are asked for their first batch."""

    def __init__(self, started: Started) -> None:
        from torch.utils.data import dataloader

        kind: Any = dataloader._MultiProcessingDataLoaderIter
        self._kind, self._reset = kind, kind._reset
        reset = self._reset

        def tell_and_reset(iterator: Any, loader: Any, first_iter: bool = False) -> None:
            if first_iter:
                started(iterator._workers)
            reset(iterator, loader, first_iter)

        self._ours = tell_and_reset
        kind._reset = tell_and_reset

    def end(self) -> None:
        """Stop telling; a watch that began later is left alone."""
        if self._kind._reset is self._ours:
            self._kind._reset = self._reset
