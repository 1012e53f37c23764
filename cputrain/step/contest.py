"""Whether steps are faster compiled than eager: both are timed in turns."""

from __future__ import annotations

import time
from statistics import median

NUM_TIMED = 10
"""Number of steps of each kind that are timed."""

NUM_IN_TURN = 5
"""Number of steps of one kind in a row; the first is not timed."""


class Contest:
    """Steps in turns, eager and compiled, until it is known which are faster."""

    def __init__(self) -> None:
        self._seconds: dict[bool, list[float]] = {True: [], False: []}
        self._num_begun = 0
        self._start: float | None = None
        self._is_compiled = False
        self.is_over = False
        """Whether it has been decided."""

    def begin(self) -> bool:
        """Begin a step, unless one was begun; return whether it is to be compiled."""
        if self._start is None:
            self._num_begun += 1
            self._is_compiled = bool(self._num_begun // NUM_IN_TURN % 2)
            self._start = time.perf_counter()
        return self._is_compiled

    def end(self) -> bool:
        """End the step; return whether it has turned out that compiled steps are slower."""
        if self._start is None:
            return False
        seconds, self._start = time.perf_counter() - self._start, None
        if self._num_begun % NUM_IN_TURN:
            self._seconds[self._is_compiled].append(seconds)
        self.is_over = all(len(values) >= NUM_TIMED for values in self._seconds.values())
        return self.is_over and median(self._seconds[True]) >= median(self._seconds[False])
