"""Measure how long the script waits for its DataLoaders."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LoaderClock:
    """A stopwatch around `next` of every DataLoader iterator."""

    def __init__(self) -> None:
        from torch.utils.data import DataLoader

        self.seconds = 0.0
        """Seconds waited so far."""

        self.kinds: set[str] = set()
        """Class names of the iterators, which show whether there are workers."""

        self._is_running = False
        self._timed: set[type] = set()
        kind: Any = DataLoader
        original = kind.__iter__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            iterator = original(loader)
            self._time_next(type(iterator))
            return iterator

        kind.__iter__ = __iter__

    def _time_next(self, kind: Any) -> None:
        owner: Any = next((base for base in kind.__mro__ if "__next__" in vars(base)), None)
        if owner is None or owner in self._timed:
            return
        self._timed.add(owner)
        original = owner.__next__

        def __next__(iterator: Any) -> Any:  # noqa: N807
            if self._is_running:  # called by a subclass's __next__, which is timed
                return original(iterator)
            self.kinds.add(type(iterator).__name__)
            self._is_running, begin = True, time.perf_counter()
            try:
                return original(iterator)
            finally:
                self._is_running = False
                self.seconds += time.perf_counter() - begin

        owner.__next__ = __next__
