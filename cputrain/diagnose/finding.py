"""What a cause of slowness is told as, and what it is found in."""

from __future__ import annotations

from enum import StrEnum

from cputrain.diagnose.consistency import reconciled
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any, Protocol

    from cputrain.diagnose.roof import Product, Roof
    from cputrain.diagnose.seen import Seen
    from cputrain.machine import Machine


MOST = 1000.0
"""The largest gain that is told."""


class Sure(StrEnum):
    """How a gain is known."""

    MEASURED = "measured"
    """The run was made with it, or what it would save was timed."""

    CALCULATED = "calculated"
    """From what was timed, and what this machine can do."""

    AT_BEST = "at best"
    """If a compiler makes of it all that can be made: try it."""


class Finding(Record):
    """A cause, what it costs, and what to do about it."""

    cause: str
    """Of six: "memory", "work", "input", "overlap", "units" or "code"."""

    title: str
    """In a few words, with the figure that counts."""

    lost_seconds: float
    """Of a step: what the remedy would save."""

    speedup: float
    """Predicted: by how much faster a step is."""

    evidence: tuple[str, ...]
    """What was seen, a line each."""

    remedy: str
    """A command or a line of code."""

    settings: dict[str, str] | None = None
    """The same as options of `cputrain launch`; None where it is no option."""

    exact: bool = True
    """Whether results stay the same but for the order of additions."""

    changes: str = ""
    """What of the results it changes, where it is not exact."""

    sure: Sure

    def __post_init__(self) -> None:
        """A remedy saves something of a step, or nothing."""
        if self.lost_seconds < 0 or self.speedup < 1:
            raise ValueError(f"a finding that saves {self.lost_seconds} s, {self.speedup} times")


class Applied(Record):
    """A remedy that was tried, or all of them."""

    title: str
    """What it is against."""

    settings: dict[str, str]
    """Options of `cputrain launch`."""

    predicted: float | None
    """By how much faster a step was to be; None of all together."""

    measured: float | None
    """By how much it is; None where the run failed."""

    fault: str = ""
    """Why."""


class Case(Record):
    """What there is to look into."""

    machine: Machine
    roof: Roof
    seen: Seen

    fewer: Seen | None = None
    """The same with fewer threads, where that was tried."""

    products: dict[Product, float] = {}
    """Seconds of products whose sides fit the CPU's units badly, and of those that fit."""

    def __post_init__(self) -> None:
        """Let no operator exceed the roof."""
        self.__dict__["roof"], self.__dict__["seen"] = reconciled(self.roof, self.seen)

    def least_step(self, *, exact: bool) -> float:
        """Return the seconds that a step's operations take at the roof.

        Args:
            exact: whether each stays in its type; the fastest type counts otherwise.
        """
        threads = self.seen.threads
        computing = 0.0
        for operator in self.seen.operators:
            highest = self.roof.highest_flops(operator.computes, threads)
            if not exact:
                highest = max(
                    highest, *(self.roof.flops(t, threads) for t in self.roof.flops_per_s)
                )
            computing += operator.flops / highest
        return min(self.seen.step, computing * self.seen.step / self.seen.whole)


if TYPE_CHECKING:

    class Cause(Protocol):
        """A module of `causes`."""

        def find(self, case: Case) -> Iterable[Finding]:
            """What it costs here; nothing where there is nothing of it."""


def found(
    case: Case, lost: float, *, from_operators: bool = False, exact: bool = True, **rest: Any
) -> Finding:
    """Return a finding that saves so many seconds of a step, or what of it can be saved.

    Nothing saves less than nothing, and no step is shorter than what it computes takes at the roof.

    Args:
        from_operators: whether the seconds are those of operators that were timed one by one, which
            may take longer than within a step as it is.
    """
    step = case.seen.step
    if from_operators:
        lost *= step / case.seen.whole
    longest = min(step - case.least_step(exact=exact), (1 - 1 / MOST) * step)
    lost = max(0.0, min(lost, longest))
    return Finding(lost_seconds=lost, speedup=step / (step - lost), exact=exact, **rest)
