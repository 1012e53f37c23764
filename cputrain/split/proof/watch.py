"""Decides when a proof is repeated on samples of the batch at hand.

A proof holds for what was proved; what it cannot see, a function that was replaced on a class say,
a watch sees some steps later. It takes at most a hundredth of the time.
"""

from __future__ import annotations

import random
import time
from contextlib import contextmanager

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_OVERHEAD = 0.01
"""Part of the time that may go into watching."""

FIRST_PAUSE_S = 1.0
"""Seconds after a proof in which nothing is compared, at least."""

SAMPLES = 8
"""So many of a batch are compared."""

SEED = 0


class Watch:
    """The next time at which a proof is repeated."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)
        self._next = time.monotonic()
        self.seconds = 0.0
        """That comparisons have taken."""

    def is_due(self) -> bool:
        """Whether to compare in this step."""
        return time.monotonic() >= self._next

    def begin(self, seconds: float) -> None:
        """Wait after a proof, which has taken longer than a comparison will."""
        self._next = time.monotonic() + max(FIRST_PAUSE_S, seconds / MAX_OVERHEAD)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Set the next time by how long this comparison takes, give or take a fifth."""
        begin = time.monotonic()
        try:
            yield
        finally:
            elapsed = time.monotonic() - begin
            self.seconds += elapsed
            pause = elapsed / MAX_OVERHEAD * self._random.uniform(1.0, 1.2)
            self._next = time.monotonic() + pause

    def pick(self, size: int) -> torch.Tensor:
        """Return the numbers of some samples of a batch, in order."""
        numbers = sorted(self._random.sample(range(size), min(size, SAMPLES)))
        return torch.tensor(numbers, dtype=torch.int64)
