"""What each device takes for its part of a batch, and the division in which all end at once.

A device's own work for n samples is taken to be fixed + n * each.
"""

from __future__ import annotations

from cputrain.record import Record
from cputrain.split.balance.auto_replicas import median

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

NEARLY = 0.8
"""A device that is through after this part of a step can have been the last."""

LEAST = 1e-12
"""Seconds that a sample takes where no clock has seen any."""


class Cost(Record):
    """What a device takes."""

    fixed: float
    """Seconds of a step, however few samples there are."""

    each: float
    """Seconds of a sample."""

    beyond: float = 0.0
    """Seconds of a divided step that are not its own work, if it is the last one: until it has what
    it needs, and others have what came of it."""

    def busy(self, samples: float) -> float:
        """Of its own work for so many."""
        return self.fixed + samples * self.each if samples else 0.0

    def seconds(self, samples: float) -> float:
        """Of a divided step in which it has so many."""
        return self.busy(samples) + self.beyond if samples else 0.0

    def samples(self, seconds: float) -> float:
        """The other way: how many it can have."""
        return max(0.0, (seconds - self.fixed - self.beyond) / self.each)


NEVER = Cost(fixed=float("inf"), each=1.0)
"""Of a device that is not worth a thought."""


class StepSamples:
    """What was measured."""

    def __init__(self) -> None:
        self._steps: list[tuple[tuple[int, ...], float, Sequence[float]]] = []
        """Samples of each device, seconds in all, and of each device's own work."""

    def add(self, sizes: tuple[int, ...], seconds: float, busy: Sequence[float]) -> None:
        """A step took so long, and each device was at its own work so long."""
        self._steps.append((sizes, seconds, busy))

    def usual(self, sizes: tuple[int, ...]) -> list[float]:
        """What each device was at its own work in steps that were divided so."""
        found = [busy for there, _, busy in self._steps if there == sizes]
        return [median(each) for each in zip(*found, strict=True)]

    def points(self, number: int) -> list[tuple[int, float]]:
        """Samples of this device, and seconds of its own work."""
        return [(sizes[number], busy[number]) for sizes, _, busy in self._steps if sizes[number]]

    def costs(self, count: int) -> tuple[Cost, ...]:
        """Of so many devices. One that never was the last has as little beyond as any."""
        beyond = self._beyond(count)
        least = min(beyond.values(), default=0.0)
        return tuple(
            fitted(points).replace(beyond=beyond.get(number, least)) if points else NEVER
            for number, points in enumerate(map(self.points, range(count)))
        )

    def _beyond(self, count: int) -> dict[int, float]:
        """Of those that were the last.

        No more can be beyond a device's work than there was in any step. So it was the last in the
        step in which that was least, unless a busier one can have been.
        """
        divided = [step for step in self._steps if sum(map(bool, step[0])) > 1]
        least: dict[int, tuple[float, float, Sequence[float]]] = {}
        for number in range(count):
            with_it = [
                (max(0.0, seconds - busy[number]), seconds, busy)
                for sizes, seconds, busy in divided
                if sizes[number]
            ]
            if with_it:
                least[number] = min(with_it, key=lambda one: one[0])
        found: dict[int, float] = {}
        for number, (beyond, seconds, busy) in least.items():
            busier = [other for other in least if busy[other] > busy[number]]
            if not any(busy[other] + least[other][0] > NEARLY * seconds for other in busier):
                found[number] = beyond
        return found


def fitted(points: Sequence[tuple[int, float]]) -> Cost:
    """The line through them, by least squares; neither number is negative."""
    count = len(points)
    middle = sum(n for n, _ in points) / count
    mean = sum(t for _, t in points) / count
    spread = sum((n - middle) ** 2 for n, _ in points)
    each = sum((n - middle) * (t - mean) for n, t in points) / spread if spread else 0.0
    fixed = mean - each * middle
    if each <= 0.0 or fixed < 0.0:  # one share only, or noise: all of it goes with the samples
        return Cost(fixed=0.0, each=max(mean / middle, LEAST))
    return Cost(fixed=fixed, each=each)


def balanced(costs: Sequence[Cost], size: int, home: int | None) -> tuple[int, ...]:
    """Samples of each, so that the last one is through as early as can be.

    Nothing is beyond the own work of the one at `home` if it has all of them.
    """

    def alone(number: int) -> float:
        return costs[number].busy(size) if number == home else costs[number].seconds(size)

    at_work = [number for number, cost in enumerate(costs) if cost.fixed < float("inf")]
    single = min(range(len(costs)), key=alone)
    best = alone(single), tuple(size if number == single else 0 for number in range(len(costs)))
    while at_work:
        sizes = _level([costs[number] for number in at_work], size)
        found = [0] * len(costs)
        for number, samples in zip(at_work, sizes, strict=True):
            found[number] = samples
        time = max(cost.seconds(n) for cost, n in zip(costs, found, strict=True))
        if time < best[0]:
            best = time, tuple(found)
        # what is left out saves its fixed costs: the others, without the one that begins last
        at_work.remove(max(at_work, key=lambda number: costs[number].seconds(1)))
    return best[1]


def _level(costs: Sequence[Cost], size: int) -> list[int]:
    """All through at the same time, if they can be."""
    low, high = 0.0, max(cost.seconds(size) for cost in costs)
    for _ in range(60):
        level = (low + high) / 2
        if sum(cost.samples(level) for cost in costs) < size:
            low = level
        else:
            high = level
    exact = [cost.samples(high) for cost in costs]
    sizes = [min(int(one), size) for one in exact]
    while sum(sizes) > size:
        sizes[sizes.index(max(sizes))] -= 1
    while sum(sizes) < size:  # to whom it takes least
        least = min(range(len(costs)), key=lambda one: costs[one].seconds(sizes[one] + 1))
        sizes[least] += 1
    return sizes
