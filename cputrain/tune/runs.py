"""Trials within a budget of time: each is told, written down, and its losses are looked at."""

from __future__ import annotations

import time

from cputrain.tune.found import NothingToTuneError, Silent, Trial
from cputrain.tune.ledger import Ledger
from cputrain.tune.losses import check
from cputrain.tune.trial import LONGEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cputrain.tune.found import Watcher
    from cputrain.tune.losses import Reference
    from cputrain.tune.trial import Outcome, Script

    Settings = dict[str, str]

SHORTEST = 20.0
"""Seconds that a trial may take, however little time is left."""

SLOW = 0.1
"""Of the budget: a run of plain python that takes more is not repeated with half the threads."""

REDUCED = frozenset({"precision"})
"""Knobs whose values other than float32 have fewer bits."""

PLAIN = {
    "allocator": "default",
    "huge_pages": "off",
    "flush_denormals": "off",
    "fused_optimizer": "off",
    "loader": "off",
    "short_waits": "off",
    "gradient_exchange": "torch",
}
"""What makes a launch plain python but for its threads."""


class Runs:
    """Everything that was run, and the time that is left."""

    def __init__(
        self,
        script: Script,
        *,
        fixed: Mapping[str, str],
        budget: float,
        watcher: Watcher | None,
        run: Callable[..., Outcome],
    ) -> None:
        self._script = script
        self._fixed = fixed
        self._budget = budget
        self._watcher = watcher or Silent()
        self._run = run
        self._begin = time.monotonic()
        self.ledger = Ledger()
        self.trials: list[Trial] = []
        self._python_took = 0.0
        self.pace = 0.0
        """Seconds of a step by the rules, at the latest."""

    def seconds(self) -> float:
        """Since the first."""
        return time.monotonic() - self._begin

    def left(self) -> float:
        """Seconds of the budget."""
        return self._budget - self.seconds()

    def has_time(self, *which: Settings, runs: int = 0) -> bool:
        """For these, for as many others, and for a turn that is to follow."""
        known = sum(map(self.ledger.cost, which))
        usual = self.ledger.usual_cost()
        # a turn is thorough, as the run of python was
        return self.left() > known + usual * runs + 2 * max(usual, self._python_took)

    def plain(self) -> Outcome:
        """Plain python. Raises NothingToTuneError."""
        outcome = self._ran("python", None, thorough=True)
        if outcome.fault:
            raise NothingToTuneError(outcome.fault)
        self._python_took = outcome.took
        self._note("python", None, outcome, None, "what the others are compared with")
        return outcome

    def disturbed(self, threads: int) -> Outcome | None:
        """Plain python with another order of additions, and noise as small as rounding.

        The order comes from half the threads. Where that takes long, the noise stands for both.
        """
        fewer = threads // 2 if threads > 1 else 2
        takes_long = self._python_took > SLOW * self._budget
        other = {**PLAIN, "threads": str(threads if takes_long else fewer)}
        outcome = self._ran("python", other, thorough=True, disturbed=True)
        return None if outcome.fault else outcome

    def attempt(
        self,
        stage: str,
        settings: Settings,
        known: Reference,
        *,
        thorough: bool = False,
        kept: float = 0.0,
    ) -> Outcome | None:
        """A trial whose losses are right; None where it is no good.

        Seconds that are `kept` for others are not for it.
        """
        outcome = self._ran(stage, settings, thorough=thorough, kept=kept)
        if outcome.fault:
            self.ledger.add(settings, outcome, None)
            self._note(stage, settings, outcome, None, outcome.fault, good=False)
            return None
        verdict = check(known, outcome.losses, reduced=is_reduced(settings))
        self.ledger.add(settings, outcome, verdict.worst)
        speedup = self.pace / outcome.step if settings and self.pace else None
        self._note(stage, settings, outcome, speedup, verdict.says, good=verdict.good)
        return outcome if verdict.good else None

    def _ran(
        self,
        stage: str,
        settings: Settings | None,
        *,
        thorough: bool,
        disturbed: bool = False,
        kept: float = 0.0,
    ) -> Outcome:
        self._watcher.begins(stage, None if disturbed else settings, self.left())
        longest = self._budget if stage == "python" else max(SHORTEST, self.left() - kept)
        return self._run(
            self._script,
            settings if settings is None or disturbed else {**self._fixed, **settings},
            disturbed=disturbed,
            thorough=thorough,
            longest=longest if longest < float("inf") else LONGEST,
        )

    def _note(
        self,
        stage: str,
        settings: Settings | None,
        outcome: Outcome,
        speedup: float | None,
        says: str,
        *,
        good: bool = True,
    ) -> None:
        trial = Trial(
            stage=stage,
            settings=settings,
            seconds=None if outcome.fault else outcome.step,
            speedup=speedup,
            says=says,
            good=good,
        )
        self.trials.append(trial)
        self._watcher.ended(trial)


def is_reduced(settings: Settings) -> bool:
    """Whether it computes with fewer bits."""
    return any(settings.get(knob, "float32") != "float32" for knob in REDUCED)
