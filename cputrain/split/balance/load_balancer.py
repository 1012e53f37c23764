"""How much of a batch each device has: tried in the script's own steps.

Steps with different shares show what each device takes, and so the division in which all are
through at once; turns decide whether that is better than the fastest device alone. Whatever the
shares, the result is the same, so every step that is measured counts.
"""

from __future__ import annotations

from cputrain.record import Record
from cputrain.split.balance.auto_replicas import Limits, median
from cputrain.split.balance.step_costs import NEVER, Cost, StepSamples, balanced
from cputrain.split.batch import divided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import Any

    from cputrain.split.balance.auto_replicas import Sizes

    Trial = Generator[tuple[int, ...], tuple[float, tuple[float, ...]], None]
    """Yields samples of each device; is sent seconds in all, and of each device's own work."""

GAIN = 1.03
"""How many times as fast dividing must be to be done."""

WARM_UP = 2
"""Steps that are not counted after a change of the shares: threads wake up, and tensors of other
sizes take memory that was not used before."""

MEASURED = 3
"""Steps that are, of each division while it is looked for: the one in the middle counts."""

SETTLED = 0.9
"""As long as a device takes less than this part of its fastest step so far, it is measured on."""

MOST = 6
"""Steps that are measured on, of each division: memory is asked for, and kernels are loaded."""

TURNS = 3
"""Turns, divided and not, that decide."""

EACH = 3
"""Steps of a turn; the one in the middle counts."""

EASED = 0.8
"""What the slowest device has, of what it is fitted to, where less is tried."""

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

WATCHED = 16
"""Steps from one look at the balance to the next, as long as that is as it was."""

DRIFTED = 0.2
"""How much longer one device may take than it did, beyond another, as a part of the step."""

OFTEN = 4
"""Looks in a row that must find it so before the shares are fitted again."""


class Fit(Record):
    """What came of it."""

    sizes: tuple[int, ...]
    """Samples of each device."""

    alone: int
    """The device that is fastest alone."""

    predicted: float
    """How many times as fast as that the best division was predicted to be."""

    measured: float | None
    """How many times as fast it was; None before that, or where it was not worth it."""

    costs: tuple[Cost, ...]
    """Of each device."""

    is_promise: bool = False
    """Whether it is told before it is measured."""

    is_forced: bool = False
    """Whether it is divided for want of memory only."""

    @property
    def divides(self) -> bool:
        """Whether several devices have samples, as that was faster."""
        return sum(map(bool, self.sizes)) > 1 and not self.is_forced


class LoadBalancer:
    """Shares in which every device is busy for the same time, or the fastest one alone."""

    def __init__(
        self, members: Sequence[int], home: Callable[[], int | None], tell: Callable[[Fit], None]
    ) -> None:
        """So many `members` on each device; the model is on that of number `home()`, or on none."""
        self._members = tuple(members)
        self._where = home
        self._place = home()
        self._tell = tell
        self._largest = 0
        self._steps = 0
        self._drifted = 0
        self._short = 0
        self._limits = Limits(len(members))
        self._skip = WARM_UP
        self._trial: Trial | None = None
        self._turn: tuple[int, ...] = ()
        self._usual: Sequence[float] = ()
        """Seconds of each device's own work, as it is divided now."""
        self.fit: Fit | None = None

    @property
    def _home(self) -> int:
        """Where all of a batch goes before anything is known."""
        return self._place or 0

    @property
    def measures(self) -> bool:
        """Until the shares are known."""
        return self.fit is None or self._trial is not None

    @property
    def listens(self) -> bool:
        """While they are not, and from time to time."""
        looks = self._steps % WATCHED == 0 or self._drifted > 0
        return self.measures or (self.fit is not None and self.fit.divides and looks)

    @property
    def settled(self) -> bool:
        """While the model is where it was, and that is the fastest device alone."""
        if self.fit is None or self.measures or self.fit.divides or self.fit.is_forced:
            return False
        return self.fit.alone == self._place == self._where()

    def sizes(self, size: int, *, trains: bool) -> Sizes:
        """Of each replica."""
        if self._place != self._where():  # the model has been moved
            self._place, self.fit, self._trial = self._where(), None, None
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
        if not self.fit.divides:
            return self._all_to(self.fit.alone, size)
        if size == sum(self.fit.sizes):
            return self.fit.sizes
        return balanced(self.fit.costs, size, self._place)

    def _all_to(self, device: int, size: int) -> tuple[int, ...]:
        return tuple(size if number == device else 0 for number in range(len(self._members)))

    def _of_members(self, sizes: Sequence[int]) -> Sizes:
        """A device's samples, for its members."""
        found: list[int] = []
        for size, count in zip(sizes, self._members, strict=True):
            each = divided(size, [1.0] * count) if size else ()
            found += [*each, *[0] * (count - len(each))]
        return tuple(found)

    def _had(self, sizes: Sizes) -> tuple[int, ...]:
        """Samples of each device, of its members'."""
        return tuple(map(sum, self._by_device(sizes)))

    def _by_device(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        """What is of each member, for each device."""
        found, at = [], 0
        for count in self._members:
            found.append(values[at : at + count])
            at += count
        return found

    def took(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:
        """Counted, if it is of the division that is measured now."""
        full = iter(busy)
        members = self._by_device([next(full) if size else 0.0 for size in sizes])
        each = tuple(map(max, members))  # the longest is the device's
        if not self.measures:
            self._watch(sizes, each, seconds)
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

    def _watch(self, sizes: Sizes, each: Sequence[float], seconds: float) -> None:
        """Have the shares fitted again where a device takes longer than it did beside another, or
        not as long, time after time."""
        if self.fit is None or not self.fit.divides:  # one that was begun before
            return
        longer = [
            took - usual * cost.busy(samples) / cost.busy(before)
            for took, usual, cost, samples, before in zip(
                each, self._usual, self.fit.costs, self._had(sizes), self.fit.sizes, strict=True
            )
            if samples and before and cost.fixed < NEVER.fixed
        ]
        uneven = len(longer) > 1 and max(longer) - min(longer) > DRIFTED * seconds
        self._drifted = self._drifted + 1 if uneven else 0
        if self._drifted >= OFTEN:
            self._drifted = 0
            self._trial = self._find(self._largest or sum(sizes))
            self._turn = next(self._trial)
            self._skip = WARM_UP

    # -- the search

    def _find(self, size: int) -> Trial:
        """The steps that it takes."""
        count, home = len(self._members), self._home
        seen = StepSamples()
        alone = yield from self._measured(self._all_to(home, size), seen)
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
            yield from self._measured(division, seen)
            # (one that has room for no sample is not measured)
            hopeful = [
                number
                for number in hopeful
                if (points := seen.points(number)) and points[-1][1] < alone
            ]
            if not hopeful:
                break
        for _ in range(ROUNDS):
            new = balanced(self._fitted(seen, hopeful), size, self._place)
            if sum(map(bool, new)) == 1 or _are_close(new, division, CLOSE * size):
                break
            division = new
            yield from self._measured(division, seen)
        yield from self._decided(size, alone, seen, hopeful)

    def _fitted(self, seen: StepSamples, hopeful: Sequence[int]) -> tuple[Cost, ...]:
        """What the model's own device takes, and those that are not hopeless."""
        return tuple(
            cost if number == self._home or number in hopeful else NEVER
            for number, cost in enumerate(seen.costs(len(self._members)))
        )

    def _decided(self, size: int, alone: float, seen: StepSamples, hopeful: Sequence[int]) -> Trial:
        """What is predicted to be worth it in turns: another device alone, then dividing."""
        costs = self._fitted(seen, hopeful)
        singles = [cost.seconds(size) for cost in costs]
        singles[self._home] = alone
        fastest = singles.index(min(singles))
        if alone < GAIN * singles[fastest]:
            fastest = self._home
        if fastest != self._home:
            home, other = (self._all_to(one, size) for one in (self._home, fastest))
            if (yield from self._turns(home, [other], seen))[1] is None:
                fastest = self._home
        single = self._all_to(fastest, size)
        division = balanced(costs, size, self._place)
        predicted, measured, better = 1.0, None, None
        if sum(map(bool, division)) > 1:
            last = max(cost.seconds(n) for cost, n in zip(costs, division, strict=True))
            predicted = singles[fastest] / last
        fit = Fit(
            sizes=self._within(division), alone=fastest, predicted=predicted, measured=None,
            costs=costs, is_promise=True,
        )  # fmt: skip
        if predicted >= GAIN:
            self._tell(fit)
            both = [division, _eased(division, costs, fastest)]
            measured, better = yield from self._turns(single, both, seen)
        # all of it at once: until then, and if it never comes to that, what was found before holds
        sizes = self._within(better or single)
        self._usual, self._drifted = seen.usual(sizes), 0
        self.fit = fit.replace(
            sizes=sizes, measured=measured, costs=self._fitted(seen, hopeful),
            is_promise=False, is_forced=better is None and sizes != single,
        )  # fmt: skip
        self._tell(self.fit)

    def _turns(
        self, one: tuple[int, ...], others: Sequence[tuple[int, ...]], seen: StepSamples
    ) -> Generator[
        tuple[int, ...], tuple[float, tuple[float, ...]], tuple[float, tuple[int, ...] | None]
    ]:
        """How many times as fast the best of the others is, and which, if that is no noise."""
        took: dict[tuple[int, ...], list[float]] = {sizes: [] for sizes in (one, *others)}
        yield from self._in_turns(took, seen)
        gains = {
            sizes: median([a / b for a, b in zip(took[one], took[sizes], strict=True)])
            for sizes in others
        }
        # no slower in any turn than the one is in the middle: noise is not taken for gain
        usual = median(took[one])
        sure = [sizes for sizes in others if gains[sizes] >= GAIN and max(took[sizes]) <= usual]
        best = max(sure or others, key=lambda sizes: gains[sizes])
        gain = gains[best]
        if gain >= GAIN and best not in sure:  # other turns decide, by what all of them takes
            again: dict[tuple[int, ...], list[float]] = {one: [], best: []}
            yield from self._in_turns(again, seen)
            gain = sum(again[one]) / sum(again[best])
        return gain, best if gain >= GAIN else None

    def _in_turns(
        self, took: dict[tuple[int, ...], list[float]], seen: StepSamples
    ) -> Generator[tuple[int, ...], tuple[float, tuple[float, ...]], None]:
        """Some turns more, of each of these divisions."""
        for turn in range(TURNS):
            for sizes in took if turn % 2 == 0 else reversed(took):
                took[sizes].append((yield from self._measured(sizes, seen, EACH)))

    def _measured(
        self, division: tuple[int, ...], seen: StepSamples, steps: int = MEASURED
    ) -> Generator[tuple[int, ...], tuple[float, tuple[float, ...]], float]:
        """Steps of this division: what one takes in all. What each device takes is written down."""
        division = self._within(division)
        times: list[float] = []
        busy: list[tuple[float, ...]] = []
        while len(times) < steps or (len(times) < MOST and _falls(busy)):
            seconds, each = yield division
            times.append(seconds)
            busy.append(each)
        del times[:-steps], busy[:-steps]
        seconds = median(times)
        seen.add(division, seconds, [median(one) for one in zip(*busy, strict=True)])
        return seconds


def _falls(busy: Sequence[Sequence[float]]) -> bool:
    """Whether any device was much faster in the last step than in all before it."""
    *before, last = busy
    return any(one < SETTLED * min(rest) for one, *rest in zip(last, *before, strict=True))


def _eased(division: Sequence[int], costs: Sequence[Cost], fastest: int) -> tuple[int, ...]:
    """With less for the slowest device: where its steps are uneven, all wait for the long ones, and
    nobody gains by the short ones."""
    slowest = max(
        (number for number, size in enumerate(division) if size and number != fastest),
        key=lambda number: costs[number].each,
    )
    eased = list(division)
    eased[slowest] = int(EASED * division[slowest])
    eased[fastest] += division[slowest] - eased[slowest]
    return tuple(eased)


def described(fit: Fit, names: Sequence[str]) -> str:
    """In words: before it is measured, and after."""
    alone = names[fit.alone]
    parts = [f"{n} on {name}" for n, name in zip(fit.sizes, names, strict=True) if n]
    how = ", ".join(parts)
    if fit.is_promise:
        return f"{how}: predicted to be {fit.predicted:.2f} times as fast as {alone} alone"
    if fit.is_forced:
        return f"{how}: there is no memory for more where all of it would be faster"
    if len(parts) > 1:
        return f"{how}: {fit.measured:.2f} times as fast as {alone} alone"
    if fit.measured is None:
        gain = "no faster" if fit.predicted <= 1.0 else f"{fit.predicted:.2f} times as fast"
        return f"{alone} alone: dividing is predicted to be {gain}"
    return f"{alone} alone: dividing was {fit.measured:.2f} times as fast, which is too little"


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
