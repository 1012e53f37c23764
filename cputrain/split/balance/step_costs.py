"""Cost models of devices, fitted to measured steps, and shard sizes of minimal step time.

The compute time of a device for n samples is modelled as fixed + n * per_sample.
"""

from __future__ import annotations

from statistics import median

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NEARLY_LAST = 0.8
"""A device busy for at least this fraction of a step may have been the last to finish."""

MIN_SAMPLE_S = 1e-12
"""Seconds per sample assumed where the clock measured none."""


class Cost(Record):
    """Cost model of one device."""

    fixed: float
    """Seconds per step, independent of the number of samples."""

    per_sample: float
    """Seconds per sample."""

    overhead: float = 0.0
    """Seconds of a sharded step besides compute, if this device is the last to finish.

    That is the latency until it has its inputs, and until others have its results.
    """

    def busy(self, samples: float) -> float:
        """Return the compute time for this many samples."""
        return self.fixed + samples * self.per_sample if samples else 0.0

    def seconds(self, samples: float) -> float:
        """Return the time of a sharded step in which the device has this many samples."""
        return self.busy(samples) + self.overhead if samples else 0.0

    def samples(self, seconds: float) -> float:
        """Return how many samples fit into this time: the inverse of `seconds`."""
        return max(0.0, (seconds - self.fixed - self.overhead) / self.per_sample)


NEVER = Cost(fixed=float("inf"), per_sample=1.0)
"""Cost of a device that is left out."""


class StepSamples:
    """Measured steps."""

    def __init__(self) -> None:
        self._steps: list[tuple[tuple[int, ...], float, Sequence[float]]] = []
        """Shard sizes, total seconds, and compute seconds, each by device."""

    def add(self, sizes: tuple[int, ...], seconds: float, busy: Sequence[float]) -> None:
        """Add a step: shard sizes, seconds in total, and compute seconds of each device."""
        self._steps.append((sizes, seconds, busy))

    def usual(self, sizes: tuple[int, ...]) -> list[float]:
        """Return each device's median compute time in steps with these shard sizes."""
        steps = [busy for step_sizes, _, busy in self._steps if step_sizes == sizes]
        return [median(times) for times in zip(*steps, strict=True)]

    def points(self, number: int) -> list[tuple[int, float]]:
        """Return (samples, compute seconds) of a device in each step in which it had samples."""
        return [(sizes[number], busy[number]) for sizes, _, busy in self._steps if sizes[number]]

    def costs(self, count: int) -> tuple[Cost, ...]:
        """Return the cost models of `count` devices.

        A device that was never the last to finish gets the smallest overhead of the others.
        """
        overheads = self._overheads(count)
        smallest = min(overheads.values(), default=0.0)
        return tuple(
            fitted(points).replace(overhead=overheads.get(number, smallest)) if points else NEVER
            for number, points in enumerate(map(self.points, range(count)))
        )

    def _overheads(self, count: int) -> dict[int, float]:
        """Return the overhead of each device that was the last to finish in some step.

        A device's overhead is at most the smallest gap between its compute time and the step time.
        In the step with that gap it was the last to finish, unless a device with more work may have
        been.
        """
        sharded_steps = [step for step in self._steps if sum(map(bool, step[0])) > 1]
        smallest_gaps: dict[int, tuple[float, float, Sequence[float]]] = {}
        for number in range(count):
            gaps = [
                (max(0.0, seconds - busy[number]), seconds, busy)
                for sizes, seconds, busy in sharded_steps
                if sizes[number]
            ]
            if gaps:
                smallest_gaps[number] = min(gaps, key=lambda gap: gap[0])
        overheads: dict[int, float] = {}
        for number, (overhead, seconds, busy) in smallest_gaps.items():
            busier = [candidate for candidate in smallest_gaps if busy[candidate] > busy[number]]
            if not any(
                busy[candidate] + smallest_gaps[candidate][0] > NEARLY_LAST * seconds
                for candidate in busier
            ):
                overheads[number] = overhead
        return overheads


def fitted(points: Sequence[tuple[int, float]]) -> Cost:
    """Fit a line to (samples, seconds) by least squares, with no negative coefficient."""
    count = len(points)
    mean_samples = sum(n for n, _ in points) / count
    mean_seconds = sum(t for _, t in points) / count
    spread = sum((n - mean_samples) ** 2 for n, _ in points)
    per_sample = (
        sum((n - mean_samples) * (t - mean_seconds) for n, t in points) / spread if spread else 0.0
    )
    fixed = mean_seconds - per_sample * mean_samples
    if per_sample <= 0.0 or fixed < 0.0:  # a single size, or noise: all time is the samples'
        return Cost(fixed=0.0, per_sample=max(mean_seconds / mean_samples, MIN_SAMPLE_S))
    return Cost(fixed=fixed, per_sample=per_sample)


def balanced(costs: Sequence[Cost], size: int, home: int | None) -> tuple[int, ...]:
    """Return the shard sizes that minimise the step time.

    The device at index `home` has no overhead if it gets the whole batch.
    """

    def single_seconds(number: int) -> float:
        return costs[number].busy(size) if number == home else costs[number].seconds(size)

    active = [number for number, cost in enumerate(costs) if cost.fixed < float("inf")]
    single = min(range(len(costs)), key=single_seconds)
    best = (
        single_seconds(single),
        tuple(size if number == single else 0 for number in range(len(costs))),
    )
    while active:
        sizes = _level([costs[number] for number in active], size)
        all_sizes = [0] * len(costs)
        for number, samples in zip(active, sizes, strict=True):
            all_sizes[number] = samples
        seconds = max(cost.seconds(n) for cost, n in zip(costs, all_sizes, strict=True))
        if seconds < best[0]:
            best = seconds, tuple(all_sizes)
        # a device left out saves its fixed cost: try without the slowest at one sample
        active.remove(max(active, key=lambda number: costs[number].seconds(1)))
    return best[1]


def _level(costs: Sequence[Cost], size: int) -> list[int]:
    """Return shard sizes with which all devices finish at the same time, as nearly as possible."""
    low, high = 0.0, max(cost.seconds(size) for cost in costs)
    for _ in range(60):
        level = (low + high) / 2
        if sum(cost.samples(level) for cost in costs) < size:
            low = level
        else:
            high = level
    exact = [cost.samples(high) for cost in costs]
    sizes = [min(int(index), size) for index in exact]
    while sum(sizes) > size:
        sizes[sizes.index(max(sizes))] -= 1
    while sum(sizes) < size:  # where one more costs least
        cheapest = min(range(len(costs)), key=lambda index: costs[index].seconds(sizes[index] + 1))
        sizes[cheapest] += 1
    return sizes
