"""How many replicas: a number that was asked for, or the fastest of the script's own steps.

Whatever their number, the result is the same; so what is measured are steps that count, and trying
costs no more than the slower ones of them.
"""

from __future__ import annotations

from cputrain.record import Record
from cputrain.split.batch import divided

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    class Choice(Protocol):
        """Who says how many."""

        @property
        def measures(self) -> bool:
            """Whether what is fastest is not known yet: what is undivided is to be timed, too."""

        @property
        def listens(self) -> bool:
            """Whether it wants to be told what the next call takes."""

        @property
        def settled(self) -> bool:
            """Whether nothing is divided from now on, as the model is fastest where it is."""

        def sizes(self, size: int, /, *, trains: bool) -> Sizes:
            """How many of so many samples each replica has in the next call."""

        def took(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:
            """A call and its backward, divided as was said: in all, and each replica's own work."""

        def limit(self, member: int, most: int) -> bool:
            """This replica never has more samples: there is no memory for them.

            False where it is limited already, or nobody can have the rest.
            """

    Sizes = tuple[int, ...]


WARM_UP = 1
"""Steps that are not counted after a change of their number."""

MEASURED = 3
"""Steps that are, of each number that is not clearly slower."""

CLEARLY = 1.25
"""How many times as slow as one replica a number is left out after its first step."""

GAIN = 1.03
"""How many times as fast several must be to be chosen."""

SHORTER = 0.9
"""Batches smaller than this part of the largest are not looked at: the last one of an epoch."""


class Limits:
    """Samples that some of so many have at most."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._most: dict[int, int] = {}

    def set(self, number: int, most: int) -> bool:
        """From now on, unless it has a limit already, or is the last one that has none."""
        if number in self._most or len(self._most) == self._count - 1:
            return False
        self._most[number] = most
        return True

    def within(self, sizes: Sizes, first: int = 0) -> Sizes:
        """With no more than that. Somebody without a limit has the rest: the first, if it may, or
        who has most."""
        free = [number for number in range(self._count) if number not in self._most]
        found = [min(size, self._most.get(number, size)) for number, size in enumerate(sizes)]
        most = max(free, key=lambda number: sizes[number])
        found[first if first in free else most] += sum(sizes) - sum(found)
        return tuple(found)


class FixedShards:
    """Always the same."""

    measures = listens = settled = False

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = shares
        self._limits = Limits(len(shares))

    def sizes(self, size: int, *, trains: bool) -> Sizes:  # noqa: ARG002  (called by this name)
        """Whatever the call."""
        sizes = divided(size, self._shares)
        return self._limits.within((*sizes, *[0] * (len(self._shares) - len(sizes))))

    def took(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:
        """It is not looked at."""

    def limit(self, member: int, most: int) -> bool:
        """Others have the rest."""
        return self._limits.set(member, most)


class Measured(Record):
    """What came of a measurement."""

    count: int
    """The number that was chosen."""

    gain: float
    """How many times as fast as one it was."""

    seconds: dict[int, float]
    """Of a sample, by the number of replicas."""


class AutoReplicas:
    """One and each of the others in turns, for a few steps; then the fastest."""

    def __init__(self, counts: Sequence[int], tell: Callable[[Measured], None]) -> None:
        self._waiting = list(counts)
        self._tell = tell
        self._seconds: dict[int, list[float]] = {1: []}
        self._largest = 0
        self._turn: list[int] = []
        self._skip = WARM_UP
        self.chosen: int | None = None if counts else 1
        """The number, once it is known."""

    @property
    def measures(self) -> bool:
        """Until the number is known."""
        return self.chosen is None

    @property
    def listens(self) -> bool:
        """As long."""
        return self.measures

    settled = False
    """Whoever hears of the number sees to that."""

    def sizes(self, size: int, *, trains: bool) -> Sizes:
        """Even ones."""
        return divided(size, [1.0] * self._count(size, trains=trains))

    def _count(self, size: int, *, trains: bool) -> int:
        """One, until the fastest is known and where nothing is learned."""
        if self.chosen is not None:
            return self.chosen
        if not trains or size < SHORTER * self._largest:
            return 1
        self._largest = max(self._largest, size)
        if not self._turn:
            self._turn = self._next()
        return self._turn[0] if self._turn else self._decide()

    def took(self, sizes: Sizes, seconds: float, busy: Sequence[float]) -> None:  # noqa: ARG002
        """Counted, if it is of the number that is measured now."""
        count, size = len(sizes), sum(sizes)
        if self.chosen is not None or not self._turn or count != self._turn[0]:
            return
        if size < SHORTER * self._largest:
            return
        if self._skip:
            self._skip -= 1
            return
        self._seconds.setdefault(count, []).append(seconds / size)
        self._turn.pop(0)
        self._skip = WARM_UP

    def limit(self, member: int, most: int) -> bool:  # noqa: ARG002
        """All of them are on the CPU."""
        return False

    def _next(self) -> list[int]:
        """One, and the next number: again and again, unless it is clearly slower."""
        while self._waiting:
            count = self._waiting[0]
            mine, ones = self._seconds.get(count, []), self._seconds[1]
            slow = mine and min(mine) > CLEARLY * min(ones)
            if not slow and len(mine) < MEASURED:
                return [1, count] if len(mine) % 2 == 0 else [count, 1]
            self._waiting.pop(0)
        return []

    def _decide(self) -> int:
        middle = {count: median(seconds) for count, seconds in self._seconds.items()}
        best = min(middle, key=lambda count: middle[count])
        # no slower in any of its steps than one is in the middle: noise is not taken for gain
        if middle[1] < GAIN * middle[best] or max(self._seconds[best]) > middle[1]:
            best = 1
        self.chosen = best
        self._tell(Measured(count=best, gain=middle[1] / middle[best], seconds=middle))
        return best


def median(values: Sequence[float]) -> float:
    """The one in the middle, or the mean of two."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
