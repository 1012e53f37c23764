"""Exhaustive search: measures every combination of candidates, to judge the usual search by."""

from __future__ import annotations

from itertools import product
from statistics import median

from cputrain.measure.statistics import summarize_ratios
from cputrain.record import Record
from cputrain.settings.core.registry import lowers_precision
from cputrain.tune.result import SearchResult
from cputrain.tune.search import Search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.settings.core.situation import Situation
    from cputrain.tune.losses import Reference

    Settings = dict[str, str]

NUM_ROUNDS = 2
"""Runs of every combination."""

NUM_FINALISTS = 3
"""Fastest combinations that run again."""

NUM_FINAL_ROUNDS = 3
"""Further runs of each finalist."""


class Combination(Record):
    """Combination of settings, and the step times of its runs."""

    settings: Settings
    """Settings that differ from the rule-based plan."""

    step_times_s: list[float]
    """Step time of each run; runs are added."""

    @property
    def step_s(self) -> float:
        """Median step time over all runs."""
        return median(self.step_times_s)


class ExhaustiveSearch(Search):
    """Search that runs every combination, without a time budget."""

    def run(self) -> SearchResult:
        """Run all combinations, run the fastest again, and return the best."""
        python, reference, rules = self._run_baselines()
        if rules is None:
            raise RuntimeError("the rule-based plan failed: no combination can be compared with it")
        self._runner.rules_step_s = rules.step_s
        situation = self._situation(rules)
        combinations = [
            Combination(settings=settings, step_times_s=[])
            for settings in self._combinations(situation)
        ]
        baseline = combinations[0]
        valid = self._run_rounds(combinations, NUM_ROUNDS, reference)
        valid = self._run_rounds(
            sorted(valid, key=lambda combination: combination.step_s)[:NUM_FINALISTS],
            NUM_FINAL_ROUNDS,
            reference,
        )
        best = min([baseline, *valid], key=lambda combination: combination.step_s)
        speedup = baseline.step_s / best.step_s
        return SearchResult(
            settings=best.settings,
            against_rules=summarize_ratios([speedup]),
            against_python=python.step_s / best.step_s,
            reason=f"{speedup:.2f} times as fast as the rules, the fastest of {len(combinations)}",
            reduced=lowers_precision(best.settings),
            loss_difference=self._runner.ledger.loss_difference(best.settings),
            later=self._runner.ledger.startup_delay_s(best.settings),
            pays_after=None,
            **self._common_fields(),
        )

    def _combinations(self, situation: Situation) -> Iterator[Settings]:
        """Yield the settings of every combination; the rule-based plan, which has none, first."""
        tried = [
            setting
            for setting in (*self._tried, *self._tried_last)
            if setting.name not in self._fixed
        ]
        for values in product(*([None, *setting.candidates(situation)] for setting in tried)):
            yield {
                setting.name: value
                for setting, value in zip(tried, values, strict=True)
                if value is not None
            }

    def _run_rounds(
        self, combinations: list[Combination], num_rounds: int, reference: Reference
    ) -> list[Combination]:
        """Run each combination once per round; return those whose losses were always right."""
        for _ in range(num_rounds):
            for combination in list(combinations):
                outcome = self._runner.run_candidate("every", combination.settings, reference)
                if outcome is None:
                    combinations = [kept for kept in combinations if kept is not combination]
                else:
                    combination.step_times_s.append(outcome.step_s)
        return combinations
