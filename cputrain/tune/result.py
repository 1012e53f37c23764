"""Result of a search, its trials, and the protocol by which a search reports progress."""

from __future__ import annotations

from cputrain.measure.statistics import Speedup
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol

    class Watcher(Protocol):
        """Receiver of a search's progress."""

        def trial_started(
            self, stage: str, settings: dict[str, str] | None, remaining_s: float, /
        ) -> None:
            """Handle the start of a trial; `remaining_s` is what is left of the time budget."""

        def trial_ended(self, trial: Trial, /) -> None:
            """Handle the end of a trial."""


class Trial(Record):
    """Candidate and the result of one run with it."""

    stage: str
    """Stage of the search: "python", "rules", "alone", "together", "turns" or "every"."""

    settings: dict[str, str] | None
    """Settings that differ from the rule-based plan; None for plain python."""

    seconds: float | None
    """Step time; None if the trial failed."""

    speedup: float | None
    """Speed-up over the rule-based plan at that time; None where it is not compared with it."""

    says: str
    """Result of the comparison of losses, or why the trial failed."""

    good: bool
    """Whether the candidate may be chosen: it ran, and its losses are those of plain python."""


class SearchResult(Record):
    """Winner of a search, how it was measured, and all trials."""

    settings: dict[str, str]
    """Settings in which the winner differs from the rule-based plan; empty if that plan won."""

    against_rules: Speedup | None
    """Speed-up over the rule-based plan in interleaved runs; None if that plan won."""

    against_python: float | None
    """Step time of plain python's run over the median of the winner's runs."""

    reason: str
    """Why the winner was chosen, or why the rule-based plan is kept."""

    reduced: bool
    """Whether the winner computes with reduced precision."""

    loss_difference: float | None
    """Largest relative difference between the winner's losses and those of plain python."""

    later: float | None
    """Seconds by which its first timed step is later than with the rule-based plan: compilation."""

    pays_after: int | None
    """Number of steps after which the faster steps have made up for `later`."""

    untried: tuple[str, ...]
    """Candidates for which no time was left."""

    unconfirmed: tuple[str, ...] = ()
    """Candidates that were faster alone, and for whose comparison in turns no time was left."""

    trials: tuple[Trial, ...]
    """All trials, in the order in which they ran."""

    seconds: float
    """Duration of the search."""


class NothingToTuneError(Exception):
    """Plain python did not train; the text says why.

    Args:
        fault: Why it did not.
        advice: What the user can do; may be empty.
    """

    def __init__(self, fault: str, advice: str) -> None:
        super().__init__(fault)
        self.advice = advice


class SilentWatcher:
    """Watcher that ignores all progress."""

    def trial_started(
        self, stage: str, settings: dict[str, str] | None, remaining_s: float
    ) -> None:
        """Ignore the start of a trial."""

    def trial_ended(self, trial: Trial) -> None:
        """Ignore the end of a trial."""


def option_words(settings: Mapping[str, str]) -> list[str]:
    """Return settings as options of `cputrain launch`."""
    return [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]


def settings_text(settings: dict[str, str] | None) -> str:
    """Return a candidate's settings in one line: "threads 2, compile on"."""
    if settings is None:
        return "plain python"
    return ", ".join(f"{name} {value}" for name, value in settings.items()) or "rules"
