"""Search for the fastest plan of a script within a time budget.

The stages:

1. Plain python runs twice: its losses are the reference that candidates are compared with.
2. The rule-based plan runs, and each candidate value of each setting runs alone; runs of the
   rule-based plan in between account for changes of the machine's speed.
3. Values that helped are combined, the most helpful first; each is kept if pairs of runs with and
   without it show that it helps there, too.
4. Settings that are expensive to try are added to the best combination.
5. The winner and the rule-based plan run in turns. The winner must be faster in every turn, and by
   more than the noise; else the rule-based plan is kept.
"""

from __future__ import annotations

from itertools import pairwise
from statistics import median

from cputrain.counting import counted
from cputrain.measure.rounds import round_order
from cputrain.measure.statistics import Speedup, summarize_ratios
from cputrain.plan import Change
from cputrain.settings.core.registry import PLAIN_VALUES, TRIED, TRIED_LAST, lowers_precision
from cputrain.settings.core.situation import Situation
from cputrain.tune.losses import make_reference
from cputrain.tune.result import SearchResult, settings_text
from cputrain.tune.runner import TrialRunner
from cputrain.tune.trial import run_trial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.settings.core.setting import Setting
    from cputrain.tune.losses import Reference
    from cputrain.tune.result import Watcher
    from cputrain.tune.trial import Script, TrialOutcome

    Settings = dict[str, str]

MIN_HELPFUL = 1.02
"""Speed-up of a single run from which a candidate is tried further."""

MIN_WINNER = 1.03
"""Median speed-up that the winner must have in the end."""

MIN_CLEAR = 1.1
"""Speed-up that a candidate must have to win with one turn only, or with none."""

ROUGH = 1.5
"""Ratio of the longest step under the rules to the shortest from which figures are rough."""

MAX_TURNS = 3
"""Turns of the winner and the rule-based plan, if there is time."""

RULES_INTERVAL = 2
"""Candidates that run between two runs of the rule-based plan."""

RUNS_TO_COMBINE = 4
"""Runs that decide whether a helpful value helps in combination with others, too."""

MAX_SLOWER = 2
"""Consecutive slowdowns of a monotonic setting after which its remaining values are skipped."""

MAX_PAYBACK_S = 600.0
"""Seconds of training within which faster steps must have made up for a later start."""


class Search:
    """Search for the fastest plan of one script.

    Args:
        script: The script, and how its trials run.
        machine: The machine, which candidates depend on.
        plan: The rule-based plan, with the user's settings.
        fixed: Settings of the user, which stay in every candidate.
        precision: Least precision that the user allows: "float32", "kernels" or "bf16".
        budget: Seconds for the whole search.
        watcher: Receives the progress.
        tried: Settings whose values are tried, first each alone.
        late: Knobs that are expensive to try, on top of the best of the others.
        run: Runs one trial; the signature is that of `run_trial`.
    """

    def __init__(
        self,
        script: Script,
        machine: Machine,
        plan: Plan,
        *,
        fixed: Mapping[str, str],
        precision: str = "float32",
        budget: float = 120.0,
        watcher: Watcher | None = None,
        tried: Sequence[Setting[Any]] = TRIED,
        tried_last: Sequence[Setting[Any]] = TRIED_LAST,
        run: Callable[..., TrialOutcome] = run_trial,
    ) -> None:
        self._runner = TrialRunner(script, fixed=fixed, budget_s=budget, watcher=watcher, run=run)
        self._machine = machine
        self._plan = plan
        self._fixed = fixed
        self._precision = precision
        self._tried = tried
        self._tried_last = tried_last
        self._python_step_s = 0.0
        """Step time of plain python."""
        self._rules_speedup = 0.0
        """Speed-up of the rule-based plan over plain python, in the first runs."""
        self._best: tuple[float, Settings] = (1.0, {})
        """Speed-up over the rule-based plan, by single runs, and settings of the best so far."""
        self._pairs: list[tuple[Settings, list[float]]] = []
        """Candidates that ran paired with the rule-based plan, and the speed-ups over it."""
        self._ratios: list[float] = []
        """Speed-up of the winner in each turn."""
        self._untried: list[str] = []
        self._unconfirmed: list[str] = []
        self._remarks: list[str] = []

    def run(self) -> SearchResult:
        """Search until every candidate is tried or the time is up; Ctrl-C keeps the best so far."""
        try:
            return self._search()
        except KeyboardInterrupt:
            if self._runner.rules_step_s == 0.0:
                raise
            return self._interrupted_result()

    def _run_baselines(self) -> tuple[TrialOutcome, Reference, TrialOutcome | None]:
        """Run plain python twice, then the rule-based plan.

        Returns:
            The first run of plain python, the reference for losses, and the run of the rule-based
            plan; None for that if it failed or its losses are wrong.
        """
        python = self._runner.run_plain_python()
        self._python_step_s = python.step_s
        disturbed = self._runner.run_disturbed(self._plan.value("threads"))
        reference = make_reference([python.losses, *([disturbed.losses] if disturbed else [])])
        return python, reference, self._runner.run_candidate("rules", {}, reference)

    def _search(self) -> SearchResult:
        python, reference, rules = self._run_baselines()
        if rules is None:
            return self._rules_result(
                "the rule-based plan failed, or its losses differ from plain python's"
            )
        self._rules_speedup = python.step_s / rules.step_s
        self._runner.rules_step_s = rules.step_s
        situation = self._situation(rules)
        best = self._combine(self._run_alone(situation, reference), reference)
        best = self._add_expensive(best, situation, reference)
        if not best:
            if all(trial.stage in ("python", "rules") for trial in self._runner.trials):
                cost_s = self._runner.ledger.median_cost_s()
                return self._rules_result(
                    f"no time was left for candidates: a trial takes {cost_s:.0f} s"
                )
            return self._rules_result("no candidate is faster than the rule-based plan")
        return self._confirm_in_turns(best, reference)

    def _situation(self, rules: TrialOutcome) -> Situation:
        """Return the facts on which candidates depend, after a run of the rule-based plan."""
        return Situation(
            machine=self._machine,
            values=self._plan.values,
            uses=frozenset(rules.uses),
            wait_fraction=sum(rules.waits) / (sum(rules.times) or 1.0),
            precision=self._precision,
        )

    # -- stages

    def _run_alone(self, situation: Situation, reference: Reference) -> list[Settings]:
        """Run every candidate alone; return those that help, the most helpful first."""
        queue = [
            (
                [{setting.name: value} for value in setting.candidates(situation)],
                setting.is_monotonic,
            )
            for setting in self._tried
            if setting.name not in self._fixed
        ]
        if self._rules_speedup < 1.0:  # the rules slow this script down: try without all of them
            plain = {
                name: value
                for name, value in PLAIN_VALUES.items()
                if name not in self._fixed and self._plan.decision(name).change is not Change.NONE
            }
            queue.insert(0, ([plain], False))
        helpful: list[tuple[float, Settings]] = []
        pending: list[tuple[Settings, TrialOutcome | None]] = []
        rules_before_s = self._runner.rules_step_s
        for candidates, in_steps in queue:
            step_times_s: list[float] = []
            for number, settings in enumerate(candidates):
                if not self._has_time_alone(pending, helpful):
                    self._untried += map(settings_text, candidates[number:])
                    break
                outcome = self._runner.run_candidate("alone", settings, reference)
                pending.append((settings, outcome))
                if len(pending) == RULES_INTERVAL:
                    rules_before_s = self._compare_with_rules(
                        pending, rules_before_s, reference, helpful
                    )
                    pending = []
                step_times_s.append(outcome.step_s if outcome is not None else float("inf"))
                if in_steps and _is_getting_slower([self._runner.rules_step_s, *step_times_s]):
                    break
        if pending:
            self._compare_with_rules(pending, rules_before_s, reference, helpful)
        return [settings for _, settings in sorted(helpful, key=lambda entry: -entry[0])]

    def _has_time_alone(
        self, pending: Sequence[object], helpful: Sequence[tuple[float, Settings]]
    ) -> bool:
        """Return whether there is time for another candidate, and to combine the helpful ones.

        Combining what clearly helps is worth more than trying another candidate.
        """
        num_clear = sum(speedup >= MIN_CLEAR for speedup, _ in helpful)
        # the candidate, and the rule-based plan after it
        if self._runner.has_time(num_others=2 + RUNS_TO_COMBINE * num_clear):
            return True
        return not pending and not helpful and self._runner.has_time(num_others=1)

    def _compare_with_rules(
        self,
        pending: list[tuple[Settings, TrialOutcome | None]],
        rules_before_s: float,
        reference: Reference,
        helpful: list[tuple[float, Settings]],
    ) -> float:
        """Run the rule-based plan again, and add pending candidates that are faster to `helpful`.

        The run is skipped where time is left for a turn only, which has one of the rule-based plan.

        Args:
            pending: Candidates that ran since the last run of the rule-based plan.
            rules_before_s: Step time of that run.
            reference: Losses of plain python.
            helpful: Speed-ups and settings of helpful candidates, which is added to.

        Returns:
            The step time of the rule-based plan now.
        """
        rules = (
            self._runner.run_candidate("rules", {}, reference)
            if self._runner.has_time(num_others=1)
            else None
        )
        self._runner.rules_step_s = rules.step_s if rules is not None else rules_before_s
        for place, (settings, outcome) in enumerate(pending, 1):
            if outcome is not None:
                # interpolated, because the machine's speed may have changed between the two runs
                fraction = place / (len(pending) + 1)
                speedup = (
                    rules_before_s + fraction * (self._runner.rules_step_s - rules_before_s)
                ) / outcome.step_s
                if speedup >= MIN_HELPFUL:
                    helpful.append((speedup, settings))
                    self._best = max(self._best, (speedup, settings), key=lambda entry: entry[0])
        return self._runner.rules_step_s

    def _combine(self, helpful: list[Settings], reference: Reference) -> Settings:
        """Add helpful candidates to the best combination as long as each makes it faster."""
        best: Settings = {}
        for settings in helpful:
            extended = {**best, **settings}
            if any(name in best for name in settings):
                continue
            if not best and not self._runner.has_time(extended, best):
                return extended  # the time that is left is for a turn against the rule-based plan
            speedup = self._paired_speedup(extended, best, reference)
            if speedup:
                self._best = (self._best[0] * speedup if best else speedup, extended)
                best = extended
        return best

    def _add_expensive(
        self, best: Settings, situation: Situation, reference: Reference
    ) -> Settings:
        """Add values of expensive settings to the best combination if they help and pay back."""
        for setting in self._tried_last:
            if setting.name in self._fixed:
                continue
            for value in setting.candidates(situation):
                extended = {**best, setting.name: value}
                speedup = self._paired_speedup(
                    extended,
                    best,
                    reference,
                    reserved_s=2 * self._runner.ledger.estimated_cost_s(best),
                )
                if speedup and self._pays_back(extended, best, speedup):
                    self._best = (self._best[0] * speedup if best else speedup, extended)
                    best = extended
        return best

    def _paired_speedup(
        self,
        extended: Settings,
        best: Settings,
        reference: Reference,
        *,
        reserved_s: float = 0.0,
    ) -> float:
        """Run two candidates A B, then B A if B looks faster, so that drift affects both alike.

        Args:
            extended: Settings B: those of A and more.
            best: Settings A.
            reference: Losses of plain python.
            reserved_s: Seconds of the budget that each run must leave to others.

        Returns:
            The median speed-up of B over A; 0 if it is too small, a run fails or time is short.
        """
        ratios: list[float] = []
        for order in ((best, extended), (extended, best)):
            if not self._runner.has_time(extended, best):
                if ratios and ratios[0] >= MIN_CLEAR:
                    break
                self._unconfirmed.append(settings_text(extended))
                return 0.0
            step_times_s = {}
            for settings in order:
                outcome = self._runner.run_candidate(
                    "together", settings, reference, reserved_s=reserved_s
                )
                if outcome is None:
                    return 0.0
                step_times_s[settings is extended] = outcome.step_s
            ratios.append(step_times_s[False] / step_times_s[True])
            if median(ratios) < MIN_HELPFUL:
                return 0.0
        if not best:
            self._pairs.append((extended, ratios))
        return median(ratios)

    def _confirm_in_turns(self, best: Settings, reference: Reference) -> SearchResult:
        """Run the winner and the rule-based plan in turns, A B, B A, …, and decide between them."""
        # pairs of a candidate and the rule-based plan, from `_combine`, are turns already
        self._ratios = next((ratios for settings, ratios in self._pairs if settings == best), [])
        for turn in range(1 if self._ratios else 0, MAX_TURNS):
            if self._ratios and not self._runner.has_time({}, best):
                break
            outcomes = {}
            for settings in round_order(({}, best), turn):
                outcomes[bool(settings)] = self._runner.run_candidate(
                    "turns", settings, reference, thorough=True
                )
            rules, winner = outcomes[False], outcomes[True]
            if rules is None or winner is None:
                return self._rules_result(
                    "the fastest candidate or the rule-based plan failed in a turn"
                )
            self._ratios.append(rules.step_s / winner.step_s)
        middle, lowest = median(self._ratios), min(self._ratios)
        if len(self._ratios) == 1 and middle < MIN_CLEAR:
            return self._rules_result(
                f"the fastest candidate was {middle:.2f} times as fast in its only turn: no time "
                "was left to confirm it"
            )
        turns = f"{lowest:.2f} to {max(self._ratios):.2f}"
        times_s = self._runner.ledger.step_times_s({})
        if max(times_s) > max(ROUGH, middle) * min(times_s):
            return self._rules_result(
                f"the figures are rough, so nothing is changed: steps under the rules took "
                f"{min(times_s) * 1e3:.3g} to {max(times_s) * 1e3:.3g} ms; stop other programs, "
                "and tune again"
            )
        if lowest <= 1.0 or middle < MIN_WINNER:
            return self._rules_result(
                f"the fastest candidate was {middle:.2f} times as fast ({turns}), which is within "
                "the noise"
            )
        return self._winner_result(
            best,
            summarize_ratios(self._ratios),
            f"{counted(len(self._ratios), 'turn')}, {turns}",
        )

    def _interrupted_result(self) -> SearchResult:
        """Return the best candidate so far if it is clearly faster, else the rule-based plan."""
        speedup, settings = self._best
        if self._ratios:
            speedup = median(self._ratios)
        if not settings or speedup < MIN_CLEAR:
            return self._rules_result("interrupted before any candidate was clearly faster")
        return self._winner_result(
            settings, summarize_ratios([speedup]), "interrupted, so not confirmed in turns"
        )

    # -- results

    def _pays_back(self, extended: Settings, best: Settings, speedup: float) -> bool:
        """Return whether faster steps make up for a later start within MAX_PAYBACK_S."""
        ledger = self._runner.ledger
        delay_s = max(0.0, ledger.startup_delay_s(extended) - ledger.startup_delay_s(best))
        step_s = self._runner.rules_step_s / self._best[0]
        num_steps = delay_s / (step_s * (1 - 1 / speedup))
        if num_steps * step_s <= MAX_PAYBACK_S:
            return True
        added = {name: value for name, value in extended.items() if name not in best}
        self._remarks.append(
            f"{settings_text(added)} is {speedup:.2f} times as fast again, but starts "
            f"{delay_s:.0f} s later, which pays off only after {num_steps:.0f} steps"
        )
        return False

    def _winner_result(self, settings: Settings, speedup: Speedup, evidence: str) -> SearchResult:
        delay_s = self._runner.ledger.startup_delay_s(settings)
        saved_s = self._runner.rules_step_s * (1 - 1 / speedup.median)
        reason = (
            f"{speedup.median:.2f} times as fast as the rules with {settings_text(settings)} "
            f"({evidence})"
        )
        return SearchResult(
            settings=settings,
            against_rules=speedup,
            against_python=self._against_python(settings),
            reason="; ".join([reason, *self._remarks]),
            reduced=lowers_precision(settings),
            loss_difference=self._runner.ledger.loss_difference(settings),
            later=delay_s,
            pays_after=max(0, round(delay_s / saved_s)),
            **self._common_fields(),
        )

    def _rules_result(self, reason: str) -> SearchResult:
        """Return the result that keeps the rule-based plan."""
        return SearchResult(
            settings={},
            against_rules=None,
            against_python=self._against_python({}),
            reason="; ".join([reason, *self._remarks]),
            reduced=False,
            loss_difference=None,
            later=None,
            pays_after=None,
            **self._common_fields(),
        )

    def _against_python(self, settings: Settings) -> float | None:
        """Return plain python's step time over the median of the settings'; None without any."""
        times_s = self._runner.ledger.step_times_s(settings)
        return self._python_step_s / median(times_s) if times_s else None

    def _common_fields(self) -> dict[str, Any]:
        """Return the fields of SearchResult that do not depend on the winner."""
        return {
            "untried": tuple(dict.fromkeys(self._untried)),
            "unconfirmed": tuple(dict.fromkeys(self._unconfirmed)),
            "trials": tuple(self._runner.trials),
            "seconds": self._runner.elapsed_s(),
        }


def _is_getting_slower(step_times_s: Sequence[float]) -> bool:
    """Return whether the last MAX_SLOWER step times are each longer than the one before."""
    last = step_times_s[-MAX_SLOWER - 1 :]
    return len(last) > MAX_SLOWER and all(b > a for a, b in pairwise(last))
