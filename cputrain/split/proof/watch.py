"""Schedule of the checks that repeat a proof on samples of a current batch.

A proof does not see later changes outside the model's structure, for example a function replaced
on a class; a repeated check sees them some steps later. Checks take at most 1 % of the run time.
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
"""Largest fraction of the run time that the checks may take."""

FIRST_PAUSE_S = 1.0
"""Shortest time from a proof to the first check, in seconds."""

FIRST_CALL = 16
"""Number of a call from which on calls are checked, each twice as late as the one before."""

SAMPLES = 8
"""Number of samples of a batch that one check compares."""

SEED = 0


class CheckSchedule:
    """Schedule the next check so that checks stay within `MAX_OVERHEAD`."""

    def __init__(self) -> None:
        self._random = random.Random(SEED)
        self._next = time.monotonic()
        self.seconds = 0.0
        """Total time of all checks so far, in seconds."""

    def is_due(self) -> bool:
        """Return whether this step should be checked."""
        return time.monotonic() >= self._next

    def begin(self, proof_s: float) -> None:
        """Schedule the first check after a proof that took this many seconds."""
        self._next = time.monotonic() + max(FIRST_PAUSE_S, proof_s / MAX_OVERHEAD)

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Time the check in the `with` block and schedule the next one in proportion to it.

        Up to 20 % of random jitter is added to the pause.
        """
        begin = time.monotonic()
        try:
            yield
        finally:
            elapsed_s = time.monotonic() - begin
            self.seconds += elapsed_s
            pause_s = elapsed_s / MAX_OVERHEAD * self._random.uniform(1.0, 1.2)
            self._next = time.monotonic() + pause_s

    def pick(self, size: int) -> torch.Tensor:
        """Return the sorted indices of a random subset of a batch's samples."""
        indices = sorted(self._random.sample(range(size), min(size, SAMPLES)))
        return torch.tensor(indices, dtype=torch.int64)


class ChecksByCalls(CheckSchedule):
    """Schedule checks by the number of calls, which does not depend on the machine's speed."""

    def __init__(self) -> None:
        super().__init__()
        self._num_calls = 0
        self._next_call = FIRST_CALL

    def is_due(self) -> bool:
        """Count a call, and return whether it should be checked."""
        self._num_calls += 1
        if self._num_calls < self._next_call:
            return False
        self._next_call *= 2
        return True
