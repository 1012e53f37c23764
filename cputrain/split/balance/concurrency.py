"""How many shards run at a time, where that changes no bit: as many as was measured to be fastest.

Threads take the GIL from one another at each operator. Where operators are short, as many threads
as cores are slower than fewer.
"""

from __future__ import annotations

NUM_SKIPPED = 2
"""Steps that are not measured at first: memory and libraries are warmed up in them."""

NUM_STEPS = 3
"""Steps that are measured for each number; the fastest one counts."""

MIN_GAIN = 1.05
"""How many times faster half as many must be to be tried further."""

CLEARLY_SLOWER = 1.5
"""How many times slower a single step must be for its number to be given up."""


class FastestCount:
    """Halves the number of shards that run at a time for as long as that is faster.

    Args:
        most: The number to begin with.
    """

    def __init__(self, most: int) -> None:
        self.count = most
        """The number for the next step."""
        self._best = most
        self._best_s = float("inf")
        self._num_skipped = NUM_SKIPPED
        self._measured_s: list[float] = []
        self._is_known = most == 1

    def record(self, count: int, sample_s: float) -> None:
        """Record a step.

        Args:
            count: How many shards ran at a time.
            sample_s: Seconds for each sample of the batch.
        """
        if self._is_known or count != self.count:
            return
        if sample_s > CLEARLY_SLOWER * self._best_s:
            self.count, self._is_known = self._best, True
            return
        if self._num_skipped:
            self._num_skipped -= 1
            return
        self._measured_s.append(sample_s)
        if len(self._measured_s) < NUM_STEPS:
            return
        fastest_s = min(self._measured_s)
        self._measured_s.clear()
        self._num_skipped = 1
        if fastest_s * MIN_GAIN < self._best_s:
            self._best, self._best_s = count, fastest_s
            self.count = count // 2
            self._is_known = count == 1
        else:
            self._is_known = True
        if self._is_known:
            self.count = self._best


class Concurrency:
    """Numbers of shards that run at a time, in a forward and in a backward.

    Args:
        num_cores: Cores that shards may run on, at most their number.
    """

    def __init__(self, num_cores: int) -> None:
        self.num_cores = num_cores
        self.forward, self.backward = FastestCount(num_cores), FastestCount(num_cores)
