"""How much of a batch each device has: fitted from the script's own steps.

A device's time for n samples is taken to be fixed + n * each. Steps with different shares show
both numbers; the best division is the one in which all are through at once. Whatever the shares,
the result is the same, so every step that is measured counts.
"""

from __future__ import annotations

from cputrain.record import Record
from cputrain.split.batch import divided
from cputrain.split.choose import Limits, median

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from cputrain.split.choose import Sizes

    Trial = Generator[tuple[int, ...], tuple[float, tuple[float, ...]], None]
    """Yields samples of each device; is sent seconds in all, and of each device's own work."""

    Points = list[list[tuple[int, float]]]
    """Of each device, samples and seconds."""

GAIN = 1.03
"""How many times as fast dividing must be to be done."""

WARM_UP = 2
"""Steps that are not counted after a change of the shares: threads wake up, and tensors of other
sizes take memory that was not used before."""

MEASURED = 2
"""Steps that are, of each division while it is looked for."""

SETTLED = 0.9
"""As long as a device takes less than this part of its fastest step so far, it is measured on."""

MOST = 6
"""Steps that are measured on, of each division: memory is asked for, and kernels are loaded."""

TURNS = 3
"""Turns, divided and not, that decide."""

EACH = 3
"""Steps of a turn; the one in the middle counts."""

SECOND = 3
"""The second share is so many times the first."""

ROUNDS = 3
"""Times that the shares are fitted after that, at the most."""

FIRST = 16
"""The first share of a device that is not known: a batch divided by this."""

CLOSE = 1 / 32
"""A fit that moves less of the batch than this is good enough."""

FEW = 8
"""Smaller batches in a row after which the largest is forgotten."""

SHORTER = 0.9
"""Batches smaller than this part of the largest are not measured: the last one of an epoch."""

WATCHED = 32
"""Steps from one look at the balance to the next."""

DRIFTED = 0.2
"""How much longer than the first the last device may be busy, as a part of the step."""

OFTEN = 3
"""Looks in a row that must find it so before the shares are fitted again."""


class Cost(Record):
    """What a device takes."""

    fixed: float
    """Seconds of a step, however few samples there are."""

    each: float
    """Seconds of a sample."""

    def seconds(self, samples: float) -> float:
        """Of a step with so many."""
        return self.fixed + samples * self.each if samples else 0.0


NEVER = Cost(fixed=float("inf"), each=1.0)
"""Of a device that is not worth a thought."""


class Fit(Record):
    """What came of it."""

    sizes: tuple[int, ...]
    """Samples of each device."""

    alone: int
    """The device that is fastest alone."""

    predicted: float
    """How many times as fast as that the division was predicted to be."""

    measured: float | None
    """How many times as fast it was; None before that, or where it was not worth it."""

    costs: tuple[Cost, ...]
    """Of each device."""


class Fitted:
    """Shares in which every device is busy for the same time, or the fastest one alone."""

    def __init__(
        self, members: Sequence[int], home: Callable[[], int], tell: Callable[[Fit], None]
    ) -> None:
        """So many `members` on each device; the model is on that of number `home()`."""
        self._members = tuple(members)
        self._where = home
        self._home = home()
        self._tell = tell
        self._largest = 0
        self._steps = 0
        self._drifted = 0
        self._short = 0
        self._limits = Limits(len(members))
        self._skip = WARM_UP
        self._trial: Trial | None = None
        self._turn: tuple[int, ...] = ()
        self._costs: tuple[Cost, ...] = ()
        self._divides = False
        self.fit: Fit | None = None

    @property
    def measures(self) -> bool:
        """Until the shares are known."""
        return self.fit is None or self._trial is not None

    @property
    def listens(self) -> bool:
        """While they are not, and from time to time."""
        return self.measures or (self._divides and self._steps % WATCHED == 0)

    @property
    def settled(self) -> bool:
        """While the model is where it was, and that is the fastest device alone."""
        at_home = self.fit is not None and self.fit.alone == self._home == self._where()
        return at_home and not self.measures and not self._divides

    def sizes(self, size: int, *, trains: bool) -> Sizes:
        """Of each replica."""
        if self._home != self._where():  # the model has been moved
            self._home, self.fit, self._trial = self._where(), None, None
        if self.measures and trains and size < SHORTER * self._largest:
            self._short += 1
            if self._short > FEW:  # the largest was one of its own
                self._largest, self._trial, self._short = 0, None, 0
        few = size < 2 * len(self._members) or size < SHORTER * self._largest
        if not trains or (self.measures and few):
            return self._of_members(self._within(self._known(size)))
        self._steps += 1
        self._short = 0
        if not self.measures:
            return self._of_members(self._within(self._known(size)))
        if SHORTER * size > self._largest or self._trial is None:
            self._largest = size
            self._trial = self._find(size)
            self._turn = next(self._trial)
            self._skip = WARM_UP
        return self._of_turn(size)

    def _of_turn(self, size: int) -> Sizes:
        """What is measured now."""
        return self._of_members(self._within(_scaled(self._turn, size)))

    def limit(self, member: int, most: int) -> bool:
        """This replica's device has so many for each of its replicas at most."""
        device = 0
        while member >= self._members[device]:
            member -= self._members[device]
            device += 1
        if not self._limits.set(device, most * self._members[device]):
            return False
        self._trial = None  # what was measured is not what will be
        return True

    def _within(self, sizes: Sizes) -> Sizes:
        return self._limits.within(sizes, self._home)

    def _known(self, size: int) -> tuple[int, ...]:
        """Where nothing is measured."""
        if self.fit is None:
            return self._all_to(self._home, size)
        if not self._divides:
            return self._all_to(self.fit.alone, size)
        if size == sum(self.fit.sizes):
            return self.fit.sizes
        return balanced(self._costs, size)

    def _all_to(self, device: int, size: int) -> tuple[int, ...]:
        return tuple(size if number == device else 0 for number in range(len(self._members)))

    def _of_members(self, sizes: Sequence[int]) -> Sizes:
        """A device's samples, for its members."""
        found: list[int] = []
        for size, count in zip(sizes, self._members, strict=True):
            each = divided(size, [1.0] * count) if size else ()
            found += [*each, *[0] * (count - len(each))]
        return tuple(found)

    def _of_devices(self, values: Sequence[float]) -> tuple[float, ...]:
        """The longest of its members' times is a device's."""
        found, at = [], 0
        for count in self._members:
            found.append(max(values[at : at + count]))
            at += count
        return tuple(found)

    def took(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:
        """Counted, if it is of the division that is measured now."""
        full = iter(busy)
        each = self._of_devices([next(full) if size else 0.0 for size in sizes])
        if not self.measures:
            self._watch(each, seconds)
            return
        size = sum(sizes)
        if self._trial is None or sizes != self._of_turn(size):
            return
        if size < SHORTER * self._largest:
            return
        if self._skip:
            self._skip -= 1
            return
        scale = self._largest / size
        before = self._turn
        try:
            self._turn = self._trial.send((seconds * scale, tuple(one * scale for one in each)))
        except StopIteration:
            self._trial = None
            return
        if self._turn != before:
            self._skip = WARM_UP

    def _watch(self, each: Sequence[float], seconds: float) -> None:
        """Have the shares fitted again where one device waits for another, time after time."""
        at_work = [one for one in each if one]
        uneven = len(at_work) > 1 and max(at_work) - min(at_work) > DRIFTED * seconds
        self._drifted = self._drifted + 1 if uneven else 0
        if self._drifted >= OFTEN:
            self._drifted = 0
            self._trial = self._find(self._largest)
            self._turn = next(self._trial)
            self._skip = WARM_UP

    # -- the search

    def _find(self, size: int) -> Trial:
        """The steps that it takes."""
        count, home = len(self._members), self._home
        points: Points = [[] for _ in range(count)]
        beyond = 0.0
        alone = yield from self._measured(self._all_to(home, size), points)
        # two shares of each of the others, neither of them much, in case it takes long
        few = max(1, size // FIRST)
        hopeful = [number for number in range(count) if number != home]
        division: tuple[int, ...] = ()
        for samples in (few, SECOND * few):
            samples = min(samples, size // count)
            division = tuple(
                samples * (number in hopeful) + (size - samples * len(hopeful)) * (number == home)
                for number in range(count)
            )
            beyond = yield from self._beyond(division, points)
            # (one that has room for no sample is not measured)
            hopeful = [
                number for number in hopeful if points[number] and points[number][-1][1] < alone
            ]
            if not hopeful:
                break
        for _ in range(ROUNDS):
            new = balanced(self._fitted(points, hopeful), size)
            if sum(map(bool, new)) == 1 or _are_close(new, division, CLOSE * size):
                break
            division = new
            beyond = yield from self._beyond(division, points)
        yield from self._decided(size, alone, beyond, points, hopeful)

    def _fitted(self, points: Points, hopeful: Sequence[int]) -> tuple[Cost, ...]:
        """What the model's own device takes, and those that are not hopeless."""
        return tuple(
            fitted(seen) if seen and (number == self._home or number in hopeful) else NEVER
            for number, seen in enumerate(points)
        )

    def _beyond(
        self, division: tuple[int, ...], points: Points
    ) -> Generator[tuple[int, ...], tuple[float, tuple[float, ...]], float]:
        """Seconds that a step takes longer than the device that is the last."""
        seconds = yield from self._measured(division, points)
        last = max(seen[-1][1] for n, seen in zip(division, points, strict=True) if n and seen)
        return max(0.0, seconds - last)

    def _decided(
        self, size: int, alone: float, beyond: float, points: Points, hopeful: Sequence[int]
    ) -> Trial:
        """What is predicted to be worth it in turns: another device alone, then dividing."""
        self._costs = self._fitted(points, hopeful)
        self._divides = False
        singles = [cost.seconds(size) + beyond for cost in self._costs]
        singles[self._home] = alone
        fastest = singles.index(min(singles))
        if fastest != self._home:
            home, other = (self._all_to(one, size) for one in (self._home, fastest))
            if not (yield from self._turns(home, other, points))[1]:
                fastest = self._home
        single = self._all_to(fastest, size)
        division = balanced(self._costs, size)
        predicted, measured = 1.0, None
        if sum(map(bool, division)) > 1:
            last = max(cost.seconds(n) for cost, n in zip(self._costs, division, strict=True))
            predicted = singles[fastest] / (last + beyond)
        if predicted >= GAIN:
            self._tell(self._made(division, fastest, predicted, None))
            measured, self._divides = yield from self._turns(single, division, points)
        sizes = self._within(division if self._divides else single)
        self.fit = self._made(sizes, fastest, predicted, measured)
        self._tell(self.fit)

    def _made(
        self, sizes: tuple[int, ...], alone: int, predicted: float, measured: float | None
    ) -> Fit:
        return Fit(
            sizes=sizes, alone=alone, predicted=predicted, measured=measured, costs=self._costs
        )

    def _turns(
        self, one: tuple[int, ...], other: tuple[int, ...], points: Points
    ) -> Generator[tuple[int, ...], tuple[float, tuple[float, ...]], tuple[float, bool]]:
        """How many times as fast the other is, and whether that is beyond the noise."""
        took: dict[tuple[int, ...], list[float]] = {one: [], other: []}
        for turn in range(TURNS):
            for sizes in (one, other) if turn % 2 == 0 else (other, one):
                took[sizes].append((yield from self._measured(sizes, points, EACH, median)))
        gain = median([a / b for a, b in zip(took[one], took[other], strict=True)])
        # no slower in any turn than the one is in the middle: noise is not taken for gain
        return gain, gain >= GAIN and max(took[other]) <= median(took[one])

    def _measured(
        self,
        division: tuple[int, ...],
        points: Points,
        steps: int = MEASURED,
        which: Callable[[list[float]], float] = min,
    ) -> Generator[tuple[int, ...], tuple[float, tuple[float, ...]], float]:
        """Steps of this division: what one takes in all. What each device takes is written down."""
        division = self._within(division)
        times: list[float] = []
        busy: list[tuple[float, ...]] = []
        while len(times) < steps or (len(times) < MOST and _falls(busy)):
            seconds, each = yield division
            times.append(seconds)
            busy.append(each)
        for number, samples in enumerate(division):
            if samples:
                points[number].append((samples, min(one[number] for one in busy)))
        return which(times[-steps:])


def _falls(busy: Sequence[Sequence[float]]) -> bool:
    """Whether any device was much faster in the last step than in all before it."""
    *before, last = busy
    return any(one < SETTLED * min(rest) for one, *rest in zip(last, *before, strict=True))


def described(fit: Fit, names: Sequence[str]) -> str:
    """In words: before it is measured, and after."""
    alone = names[fit.alone]
    parts = [f"{n} on {name}" for n, name in zip(fit.sizes, names, strict=True) if n]
    if len(parts) > 1:
        how = ", ".join(parts)
        if fit.measured is None:
            return f"{how}: predicted to be {fit.predicted:.2f} times as fast as {alone} alone"
        return f"{how}: {fit.measured:.2f} times as fast as {alone} alone"
    if fit.measured is None:
        gain = "no faster" if fit.predicted <= 1.0 else f"{fit.predicted:.2f} times as fast"
        return f"{alone} alone: dividing is predicted to be {gain}"
    return f"{alone} alone: dividing was {fit.measured:.2f} times as fast, which is too little"


def fitted(points: Sequence[tuple[int, float]]) -> Cost:
    """The line through them, by least squares; neither number is negative."""
    count = len(points)
    middle = sum(n for n, _ in points) / count
    mean = sum(t for _, t in points) / count
    spread = sum((n - middle) ** 2 for n, _ in points)
    each = sum((n - middle) * (t - mean) for n, t in points) / spread if spread else 0.0
    fixed = mean - each * middle
    if each <= 0.0 or fixed < 0.0:  # one share only, or noise: all of it goes with the samples
        return Cost(fixed=0.0, each=mean / middle)
    return Cost(fixed=fixed, each=each)


def balanced(costs: Sequence[Cost], size: int) -> tuple[int, ...]:
    """Samples of each, so that the last one is through as early as can be."""
    at_work = [number for number, cost in enumerate(costs) if cost.fixed < float("inf")]
    best: tuple[float, tuple[int, ...]] | None = None
    while at_work:
        sizes = _level([costs[number] for number in at_work], size)
        found = [0] * len(costs)
        for number, samples in zip(at_work, sizes, strict=True):
            found[number] = samples
        time = max(cost.seconds(n) for cost, n in zip(costs, found, strict=True))
        if best is None or time < best[0]:
            best = time, tuple(found)
        # what is left out saves its fixed costs: the others, without the one that begins last
        at_work.remove(max(at_work, key=lambda number: costs[number].fixed))
    single = min(range(len(costs)), key=lambda number: costs[number].seconds(size))
    alone = tuple(size if number == single else 0 for number in range(len(costs)))
    if best is None or costs[single].seconds(size) <= best[0]:
        return alone
    return best[1]


def _level(costs: Sequence[Cost], size: int) -> list[int]:
    """All through at the same time, if they can be."""
    low, high = 0.0, max(cost.seconds(size) for cost in costs)
    for _ in range(60):
        level = (low + high) / 2
        if sum(max(0.0, (level - cost.fixed) / cost.each) for cost in costs) < size:
            low = level
        else:
            high = level
    exact = [max(0.0, (high - cost.fixed) / cost.each) for cost in costs]
    sizes = [int(one) for one in exact]
    while sum(sizes) > size:
        sizes[sizes.index(max(sizes))] -= 1
    while sum(sizes) < size:  # to whom it takes least
        least = min(range(len(costs)), key=lambda one: costs[one].seconds(sizes[one] + 1))
        sizes[least] += 1
    return sizes


def _are_close(one: Sequence[int], other: Sequence[int], far: float) -> bool:
    return all(abs(a - b) <= far for a, b in zip(one, other, strict=True))


def _scaled(sizes: tuple[int, ...], size: int) -> tuple[int, ...]:
    """The same shares of another batch."""
    if sum(sizes) == size:
        return sizes
    having = [number for number, one in enumerate(sizes) if one]
    parts = divided(size, [sizes[number] for number in having])
    found = [0] * len(sizes)
    for number, one in zip(having, parts, strict=False):
        found[number] = one
    return tuple(found)
