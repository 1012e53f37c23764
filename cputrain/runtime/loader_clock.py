"""Measure how long a script waits for batches of its DataLoaders."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LoaderClock:
    """Stopwatch around `next` of every DataLoader iterator; patches `DataLoader.__iter__`."""

    def __init__(self) -> None:
        from torch.utils.data import DataLoader

        self.seconds = 0.0
        """Seconds in `next` so far."""

        self.kinds: set[str] = set()
        """Class names of the iterators, which show whether there are workers."""

        self._is_running = False
        self._timed: set[type] = set()
        loader_class: Any = DataLoader
        original = loader_class.__iter__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            iterator = original(loader)
            self._time_next(type(iterator))
            return iterator

        loader_class.__iter__ = __iter__

    def _time_next(self, iterator_class: Any) -> None:
        """Patch the inherited `__next__` of an iterator class, once per defining class."""
        owner: Any = next(
            (base for base in iterator_class.__mro__ if "__next__" in vars(base)), None
        )
        if owner is None or owner in self._timed:
            return
        self._timed.add(owner)
        original = owner.__next__

        def __next__(iterator: Any) -> Any:  # noqa: N807
            if self._is_running:  # called by the __next__ of a subclass, which is timed
                return original(iterator)
            self.kinds.add(type(iterator).__name__)
            self._is_running, begin = True, time.perf_counter()
            try:
                return original(iterator)
            finally:
                self._is_running = False
                self.seconds += time.perf_counter() - begin

        owner.__next__ = __next__
