"""How long the script waits for its DataLoaders."""

from __future__ import annotations

import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class LoaderClock:
    """Runs whenever a loader is asked for its next batch."""

    def __init__(self) -> None:
        from torch.utils.data import DataLoader

        self.seconds = 0.0
        """So far."""

        self.kinds: set[str] = set()
        """Names of the iterators that were asked: they tell whether there are workers."""

        self._is_asked = False
        self._timed: set[type] = set()
        kind: Any = DataLoader
        own = kind.__iter__

        def __iter__(loader: Any) -> Any:  # noqa: N807
            made = own(loader)
            self._time_next(type(made))
            return made

        kind.__iter__ = __iter__

    def _time_next(self, kind: Any) -> None:
        owner: Any = next((one for one in kind.__mro__ if "__next__" in vars(one)), None)
        if owner is None or owner in self._timed:
            return
        self._timed.add(owner)
        own = owner.__next__

        def __next__(iterator: Any) -> Any:  # noqa: N807
            if self._is_asked:  # called by a subclass's own
                return own(iterator)
            self.kinds.add(type(iterator).__name__)
            self._is_asked, begin = True, time.perf_counter()
            try:
                return own(iterator)
            finally:
                self._is_asked = False
                self.seconds += time.perf_counter() - begin

        owner.__next__ = __next__
