"""What a search tells: every trial, and what it came to."""

from __future__ import annotations

from cputrain.bench.compare import Speedup
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Protocol

    class Watcher(Protocol):
        """Whoever wants to hear of a search while it goes on."""

        def begins(self, stage: str, settings: dict[str, str] | None, left: float, /) -> None:
            """A trial starts, with so many seconds left."""

        def ended(self, trial: Trial, /) -> None:
            """It is over."""


class Trial(Record):
    """A candidate, and what was found."""

    stage: str
    """ "python", "rules", "alone", "together" or "turns"."""

    settings: dict[str, str] | None
    """What it has beyond the rules; None for plain python."""

    seconds: float | None
    """Of a step; None where it came to nothing."""

    speedup: float | None
    """Against the rules at that time; None where there is nothing to compare."""

    says: str
    """What its losses say, or why it came to nothing."""

    good: bool
    """Whether it may be chosen."""


class Found(Record):
    """What a search came to."""

    settings: dict[str, str]
    """What the winner has beyond the rules; empty where the rules stay."""

    against_rules: Speedup | None
    """How many times as fast, in turns; None where the rules stay."""

    against_python: float | None
    """How many times as fast as plain python, from single runs."""

    reason: str
    """Why it was chosen, or why the rules stay."""

    reduced: bool
    """Whether it computes with fewer bits."""

    loss_difference: float | None
    """The largest from plain python's."""

    later: float | None
    """Seconds that it loses against the rules until it is warm: by compiling, mostly."""

    pays_after: int | None
    """Steps after which that is made up for."""

    untried: tuple[str, ...]
    """What there was no time for."""

    trials: tuple[Trial, ...]
    """Everything that was run."""

    seconds: float
    """How long that took."""


class NothingToTuneError(Exception):
    """Plain python did not train: its text says what it did."""


class Silent:
    """A watcher that does nothing."""

    def begins(self, stage: str, settings: dict[str, str] | None, left: float) -> None:
        pass

    def ended(self, trial: Trial) -> None:
        pass


def shown(settings: dict[str, str] | None) -> str:
    """What a trial has beyond the rules, in a line."""
    if settings is None:
        return "plain python"
    return ", ".join(f"{knob} {value}" for knob, value in settings.items()) or "rules"
