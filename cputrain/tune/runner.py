"""Runner of trials: keeps to a time budget, compares losses, and records and reports each trial."""

from __future__ import annotations

import time

from cputrain.settings.core.registry import PLAIN_VALUES, lowers_precision
from cputrain.tune.ledger import Ledger
from cputrain.tune.losses import compare_losses
from cputrain.tune.result import NothingToTuneError, SilentWatcher, Trial
from cputrain.tune.trial import LONGEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cputrain.tune.losses import Reference
    from cputrain.tune.result import Watcher
    from cputrain.tune.trial import Script, TrialOutcome

    Settings = dict[str, str]

MIN_TRIAL_S = 20.0
"""Time that every trial is granted, however little of the budget is left."""

MIN_FIRST_S = 60.0
"""Time that plain python is granted: without its steps there is nothing to compare with."""

SLOW_FRACTION = 0.1
"""Fraction of the budget: where plain python takes more, it is not repeated with fewer threads."""


class TrialRunner:
    """Runner of one search's trials, with their results and the rest of the time budget.

    Args:
        script: The script to tune.
        fixed: Settings of the user, the same in every trial but plain python's.
        budget_s: Time for the whole search; may be infinite.
        watcher: Receives the progress.
        run: Runs one trial, as `run_trial` does.
    """

    def __init__(
        self,
        script: Script,
        *,
        fixed: Mapping[str, str],
        budget_s: float,
        watcher: Watcher | None,
        run: Callable[..., TrialOutcome],
    ) -> None:
        self._script = script
        self._fixed = fixed
        self._budget_s = budget_s
        self._watcher = watcher or SilentWatcher()
        self._run = run
        self._started_at = time.monotonic()
        self.ledger = Ledger()
        self.trials: list[Trial] = []
        self._python_elapsed_s = 0.0
        self.rules_step_s = 0.0
        """Step time of the latest run of the rule-based plan; 0 before there is one."""

    def elapsed_s(self) -> float:
        """Return the seconds since the search began."""
        return time.monotonic() - self._started_at

    def remaining_s(self) -> float:
        """Return the seconds left of the budget."""
        return self._budget_s - self.elapsed_s()

    def has_time(self, *candidates: Settings, num_others: int = 0) -> bool:
        """Return whether the budget allows these trials, and one turn after them.

        Args:
            candidates: Settings to run, each once.
            num_others: Number of further trials, of settings that have not run yet.
        """
        expected_s = sum(map(self.ledger.estimated_cost_s, candidates))
        usual_s = self.ledger.median_cost_s()
        # a turn has two thorough trials; plain python's was thorough, too
        return self.remaining_s() > expected_s + usual_s * num_others + 2 * max(
            usual_s, self._python_elapsed_s
        )

    def run_plain_python(self) -> TrialOutcome:
        """Run the script under plain python. Raises NothingToTuneError if it does not train."""
        outcome = self._run_trial("python", None, thorough=True)
        if outcome.fault:
            raise NothingToTuneError(outcome.fault, outcome.advice)
        self._python_elapsed_s = outcome.elapsed_s
        self._record("python", None, outcome, None, "reference for the losses of candidates")
        return outcome

    def run_disturbed(self, threads: int) -> TrialOutcome | None:
        """Run plain python with another order of additions, and with noise of the size of rounding.

        Half of the threads give the other order. Where plain python is slow, all threads run and
        the noise alone disturbs. None if the run fails.
        """
        fewer = threads // 2 if threads > 1 else 2
        is_slow = self._python_elapsed_s > SLOW_FRACTION * self._budget_s
        settings = {**PLAIN_VALUES, "threads": str(threads if is_slow else fewer)}
        outcome = self._run_trial("python", settings, thorough=True, disturbed=True)
        return None if outcome.fault else outcome

    def run_candidate(
        self,
        stage: str,
        settings: Settings,
        reference: Reference,
        *,
        thorough: bool = False,
        reserved_s: float = 0.0,
    ) -> TrialOutcome | None:
        """Run a candidate and compare its losses; None if it fails or its losses are wrong.

        Args:
            stage: Stage of the search that the trial is recorded under.
            settings: Settings that differ from the rule-based plan.
            reference: Losses of plain python.
            thorough: Whether to run until there are enough losses for a strict comparison.
            reserved_s: Seconds of the budget that this trial must leave to others.
        """
        outcome = self._run_trial(stage, settings, thorough=thorough, reserved_s=reserved_s)
        if outcome.fault:
            self.ledger.add(settings, outcome, None)
            self._record(stage, settings, outcome, None, outcome.fault, good=False)
            return None
        verdict = compare_losses(reference, outcome.losses, reduced=lowers_precision(settings))
        self.ledger.add(settings, outcome, verdict.max_difference)
        speedup = self.rules_step_s / outcome.step_s if settings and self.rules_step_s else None
        self._record(stage, settings, outcome, speedup, verdict.says, good=verdict.good)
        return outcome if verdict.good else None

    def _run_trial(
        self,
        stage: str,
        settings: Settings | None,
        *,
        thorough: bool,
        disturbed: bool = False,
        reserved_s: float = 0.0,
    ) -> TrialOutcome:
        self._watcher.trial_started(stage, None if disturbed else settings, self.remaining_s())
        longest = (
            max(MIN_FIRST_S, self._budget_s)
            if stage == "python"
            else max(MIN_TRIAL_S, self.remaining_s() - reserved_s)
        )
        return self._run(
            self._script,
            settings if settings is None or disturbed else {**self._fixed, **settings},
            disturbed=disturbed,
            thorough=thorough,
            longest=longest if longest < float("inf") else LONGEST,
        )

    def _record(
        self,
        stage: str,
        settings: Settings | None,
        outcome: TrialOutcome,
        speedup: float | None,
        says: str,
        *,
        good: bool = True,
    ) -> None:
        trial = Trial(
            stage=stage,
            settings=settings,
            seconds=None if outcome.fault else outcome.step_s,
            speedup=speedup,
            says=says,
            good=good,
        )
        self.trials.append(trial)
        self._watcher.trial_ended(trial)
