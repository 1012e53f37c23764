"""The number of replicas: fixed, or the fastest in the script's own steps.

The result is the same for any number of replicas. So the measured steps are ordinary training
steps, and measuring costs no more than the slower ones among them.
"""

from __future__ import annotations

from statistics import median

from cputrain.record import Record
from cputrain.split.batch import divided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    class Choice(Protocol):
        """Picks the shard sizes of each call of a dispatcher."""

        @property
        def is_measuring(self) -> bool:
            """Whether measurements go on: unsharded calls are then timed as well."""

        @property
        def needs_times(self) -> bool:
            """Whether the next call is to be timed and passed to `record`."""

        @property
        def is_undivided(self) -> bool:
            """Whether nothing will be sharded any more: batches stay on the model's device."""

        def sizes(self, size: int, /, *, trains: bool) -> Sizes:
            """Return how many of `size` samples each replica gets in the next call."""

        def record(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:
            """Record the seconds of a call and its backward: total, and each replica's own."""

        def limit(self, replica: int, limit: int) -> bool:
            """Limit a replica to `limit` samples, as its device has no memory for more.

            Returns False if it is limited already, or if no other replica can take the rest.
            """

    Sizes = tuple[int, ...]


WARM_UP = 1
"""Steps that are not counted after a change of the number of replicas."""

STEPS_PER_COUNT = 3
"""Steps that are measured for each number of replicas, unless it is clearly slower."""

CLEARLY_SLOWER = 1.25
"""Step time relative to one replica from which a number is dropped after its first step."""

MIN_GAIN = 1.03
"""Speed-up over one replica from which several are chosen."""

MIN_BATCH_RATIO = 0.9
"""Batches smaller than this fraction of the largest are not measured: an epoch's last batch."""


class ShardLimits:
    """Upper limits on the shard sizes of some of `count` replicas or devices."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._limits: dict[int, int] = {}

    def set(self, number: int, limit: int) -> bool:
        """Set a limit; return False if there is one already, or if no other is unlimited."""
        if number in self._limits or len(self._limits) == self._count - 1:
            return False
        self._limits[number] = limit
        return True

    def within(self, sizes: Sizes, first: int = 0) -> Sizes:
        """Return the sizes with limits applied.

        The excess goes to index `first` if it has no limit, else to the largest shard without
        one.
        """
        unlimited = [number for number in range(self._count) if number not in self._limits]
        limited = [min(size, self._limits.get(number, size)) for number, size in enumerate(sizes)]
        largest = max(unlimited, key=lambda number: sizes[number])
        limited[first if first in unlimited else largest] += sum(sizes) - sum(limited)
        return tuple(limited)


class FixedShards:
    """Shard sizes in fixed proportions."""

    is_measuring = needs_times = is_undivided = False

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = shares
        self._limits = ShardLimits(len(shares))

    def sizes(self, size: int, *, trains: bool) -> Sizes:  # noqa: ARG002  (called by keyword)
        """Return sizes in proportion to the shares, within the limits."""
        sizes = divided(size, self._shares)
        return self._limits.within((*sizes, *[0] * (len(self._shares) - len(sizes))))

    def record(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:
        """Ignore the times."""

    def limit(self, replica: int, limit: int) -> bool:
        """Limit a replica; the others take the rest."""
        return self._limits.set(replica, limit)


class ReproducibleShards(FixedShards):
    """Equal shards, whose sizes depend on nothing but that of the batch.

    Args:
        count: Number of shards.
        least: Fewest samples of a batch that is sharded. Fewer are too few for a proof: in a run
            that is continued with such a batch it is whole, and so it has to be in all runs.
    """

    def __init__(self, count: int, least: int) -> None:
        super().__init__([1.0] * count)
        self._least = least

    def sizes(self, size: int, *, trains: bool) -> Sizes:
        """Return equal sizes."""
        if size < self._least:
            return (size, *[0] * (len(self._shares) - 1))
        return super().sizes(size, trains=trains)


class Measured(Record):
    """Result of the measurement."""

    count: int
    """Number of replicas that was chosen."""

    gain: float
    """Its speed-up over one replica."""

    seconds: dict[int, float]
    """Seconds per sample, by number of replicas."""


class AutoReplicas:
    """Measures one replica and each other number in turns for a few steps; picks the fastest."""

    def __init__(self, counts: Sequence[int], on_measured: Callable[[Measured], None]) -> None:
        self._candidates = list(counts)
        self._on_measured = on_measured
        self._sample_seconds: dict[int, list[float]] = {1: []}
        self._largest_batch = 0
        self._turn: list[int] = []
        self._num_to_skip = WARM_UP
        self.chosen: int | None = None if counts else 1
        """The number of replicas; None until it is known."""

    @property
    def is_measuring(self) -> bool:
        """Whether the number is still unknown."""
        return self.chosen is None

    @property
    def needs_times(self) -> bool:
        """Whether the number is still unknown."""
        return self.is_measuring

    is_undivided = False
    """False: the callback that gets the result removes unused threads."""

    def sizes(self, size: int, *, trains: bool) -> Sizes:
        """Return even shard sizes."""
        return divided(size, [1.0] * self._replicas_for(size, trains=trains))

    def _replicas_for(self, size: int, *, trains: bool) -> int:
        """Return the number of replicas for the next call; 1 for calls that are not measured."""
        if self.chosen is not None:
            return self.chosen
        if not trains or size < MIN_BATCH_RATIO * self._largest_batch:
            return 1
        self._largest_batch = max(self._largest_batch, size)
        if not self._turn:
            self._turn = self._next_turn()
        return self._turn[0] if self._turn else self._decide()

    def record(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:  # noqa: ARG002
        """Record a step, if it used the number of replicas that is measured now."""
        count, size = len(sizes), sum(sizes)
        if self.chosen is not None or not self._turn or count != self._turn[0]:
            return
        if size < MIN_BATCH_RATIO * self._largest_batch:
            return
        if self._num_to_skip:
            self._num_to_skip -= 1
            return
        self._sample_seconds.setdefault(count, []).append(seconds / size)
        self._turn.pop(0)
        self._num_to_skip = WARM_UP

    def limit(self, replica: int, limit: int) -> bool:  # noqa: ARG002
        """Return False: all replicas are on the CPU and share its memory."""
        return False

    def _next_turn(self) -> list[int]:
        """Return the next turn: one replica and a candidate, unless that is clearly slower."""
        while self._candidates:
            count = self._candidates[0]
            candidate_seconds, baseline_seconds = (
                self._sample_seconds.get(count, []),
                self._sample_seconds[1],
            )
            is_slow = candidate_seconds and min(candidate_seconds) > CLEARLY_SLOWER * min(
                baseline_seconds
            )
            if not is_slow and len(candidate_seconds) < STEPS_PER_COUNT:
                return [1, count] if len(candidate_seconds) % 2 == 0 else [count, 1]
            self._candidates.pop(0)
        return []

    def _decide(self) -> int:
        medians = {count: median(seconds) for count, seconds in self._sample_seconds.items()}
        best = min(medians, key=lambda count: medians[count])
        # its slowest step must be no slower than the median of one replica: that is not noise
        if medians[1] < MIN_GAIN * medians[best] or max(self._sample_seconds[best]) > medians[1]:
            best = 1
        self.chosen = best
        self._on_measured(Measured(count=best, gain=medians[1] / medians[best], seconds=medians))
        return best
