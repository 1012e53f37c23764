"""Finding the plan that is fastest for a script, within a budget of time.

First plain python, twice, for the losses; then the plan by rules, and every value of every knob
alone, with the rules in between. What helped is added to the best so far, one after the other, the
most helpful first, if the two are so in turns; what costs much to try comes after that. In the end
the winner and the plan by rules run in turns: it must be faster in every turn, and by more than the
noise, or the rules stay.
"""

from __future__ import annotations

import time
from itertools import pairwise

from cputrain.bench.compare import Speedup, median
from cputrain.tune.candidates import KNOBS, LATE, Situation
from cputrain.tune.found import Found, NothingToTuneError, Silent, Trial, shown
from cputrain.tune.ledger import Ledger
from cputrain.tune.losses import check, reference
from cputrain.tune.trial import run_trial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.candidates import Knob
    from cputrain.tune.found import Watcher
    from cputrain.tune.losses import Reference
    from cputrain.tune.trial import Outcome, Script

    Settings = dict[str, str]

HELPS = 1.02
"""How many times as fast a value must be to be looked at again."""

BEATS = 1.03
"""How many times as fast the winner must be in the end."""

CLEARLY = 1.1
"""How many times as fast what ran but once must be to be kept when the search is interrupted."""

TURNS = 3
"""How often the winner and the rules run in turns, if there is time."""

BETWEEN = 2
"""Candidates between two runs of the rules."""

WORSE = 2
"""Values of a knob in steps, each slower than the one before, after which the rest is left out."""

SHORTEST = 20.0
"""Seconds that a trial may take, however little time is left."""

LONGEST_WAIT = 600.0
"""Seconds of training that may pass before a later start has paid."""

REDUCED = frozenset({"precision"})
"""Knobs whose values other than float32 have fewer bits."""


class Search:
    """One search: what was tried so far, and the best."""

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
        knobs: Sequence[Knob] = KNOBS,
        late: Sequence[Knob] = LATE,
        run: Callable[..., Outcome] = run_trial,
    ) -> None:
        self._script = script
        self._machine = machine
        self._plan = plan
        self._fixed = fixed
        self._precision = precision
        self._budget = budget
        self._begin = time.monotonic()
        self._watcher = watcher or Silent()
        self._knobs = knobs
        self._late_knobs = late
        self._run = run
        self._trials: list[Trial] = []
        self._pace = self._rules_gain = 0.0
        """Seconds of a step by the rules, at the latest; and how many times as fast as python."""
        self._ledger = Ledger()
        self._best: tuple[float, Settings] = (1.0, {})
        """The fastest so far, from single runs: how many times as fast as the rules."""
        self._pairs: list[tuple[Settings, list[float]]] = []
        """What was put together with the rules alone, and how many times as fast as they it was."""
        self._ratios: list[float] = []
        self._untried: list[str] = []

    def run(self) -> Found:
        """Search until there is nothing left to try, or no time."""
        try:
            return self._search()
        except KeyboardInterrupt:
            if self._pace == 0.0:
                raise
            return self._so_far()

    def left(self) -> float:
        """Seconds of the budget."""
        return self._begin + self._budget - time.monotonic()

    def _search(self) -> Found:
        python = self._plain()
        other = self._disturbed()
        known = reference([python.losses, *([other.losses] if other else [])])
        rules = self._try("rules", {}, known)
        if rules is None:
            return self._stays("the plan by rules came to nothing")
        self._rules_gain = python.step / rules.step
        self._pace = rules.step
        situation = Situation(
            machine=self._machine, plan=self._plan, rules=rules, precision=self._precision
        )
        best = self._together(self._alone(situation, known), known)
        best = self._late(best, situation, known)
        if not best:
            if all(trial.stage in ("python", "rules") for trial in self._trials):
                usual = self._ledger.usual_cost()
                return self._stays(f"a trial takes {usual:.0f} s: no time was left for more")
            return self._stays("nothing that was tried is faster")
        return self._in_turns(best, known)

    # -- stages

    def _plain(self) -> Outcome:
        outcome = self._ran("python", None, thorough=True)
        if outcome.fault:
            raise NothingToTuneError(outcome.fault)
        self._note("python", None, outcome, None, "what the others are compared with")
        return outcome

    def _disturbed(self) -> Outcome | None:
        """Plain python with another order of additions, and noise as small as rounding."""
        threads = self._plan.value("threads")
        plain = {**_PLAIN, "threads": str(threads // 2 if threads > 1 else 2)}
        outcome = self._ran("python", plain, thorough=True, disturbed=True)
        return None if outcome.fault else outcome

    def _alone(self, situation: Situation, known: Reference) -> list[Settings]:
        """Every value by itself: those that help, the most helpful first."""
        waiting = [
            ([{knob.KNOB: value} for value in knob.values(situation)], knob.IN_STEPS)
            for knob in self._knobs
            if knob.KNOB not in self._fixed
        ]
        if self._rules_gain < 1.0:  # whatever it is that is wrong with the rules
            plain = {knob: value for knob, value in _PLAIN.items() if knob not in self._fixed}
            waiting.insert(0, ([plain], False))
        found: list[tuple[float, Settings]] = []
        tried: list[tuple[Settings, Outcome | None]] = []
        before = self._pace
        for candidates, in_steps in waiting:
            steps: list[float] = []
            for number, settings in enumerate(candidates):
                if not self._has_time(runs=1):
                    self._untried += map(shown, candidates[number:])
                    break
                outcome = self._try("alone", settings, known)
                tried.append((settings, outcome))
                if len(tried) == BETWEEN:
                    before = self._compare(tried, before, known, found)
                    tried = []
                steps.append(outcome.step if outcome is not None else float("inf"))
                if in_steps and _is_worse_and_worse([self._pace, *steps]):
                    break
        if tried:
            self._compare(tried, before, known, found)
        return [settings for _, settings in sorted(found, key=lambda one: -one[0])]

    def _compare(
        self,
        tried: list[tuple[Settings, Outcome | None]],
        before: float,
        known: Reference,
        found: list[tuple[float, Settings]],
    ) -> float:
        """What was tried between two runs of the rules, of which this makes the second."""
        rules = self._try("rules", {}, known)
        self._pace = rules.step if rules is not None else before
        for place, (settings, outcome) in enumerate(tried, 1):
            if outcome is not None:
                # the machine may have changed its pace between the two
                part = place / (len(tried) + 1)
                speedup = (before + part * (self._pace - before)) / outcome.step
                if speedup >= HELPS:
                    found.append((speedup, settings))
                    self._best = max(self._best, (speedup, settings), key=lambda one: one[0])
        return self._pace

    def _together(self, helpful: list[Settings], known: Reference) -> Settings:
        """What helped, added to the best so far as long as it helps still."""
        best: Settings = {}
        for settings in helpful:
            more = {**best, **settings}
            if any(knob in best for knob in settings):
                continue
            gain = self._gain(more, best, known)
            if gain:
                self._best = (self._best[0] * gain if best else gain, more)
                best = more
        return best

    def _late(self, best: Settings, situation: Situation, known: Reference) -> Settings:
        """What costs much, on top of the best so far; the time for turns is kept."""
        for knob in self._late_knobs:
            if knob.KNOB in self._fixed:
                continue
            for value in knob.values(situation):
                more = {**best, knob.KNOB: value}
                gain = self._gain(more, best, known, kept=2 * self._ledger.cost(best))
                if gain:
                    self._best = (self._best[0] * gain if best else gain, more)
                    best = more
        return best

    def _gain(
        self, more: Settings, best: Settings, known: Reference, *, kept: float = 0.0
    ) -> float:
        """A B, and B A if that looks well: what drifts in between touches both alike.

        How many times as fast it is with more; 0 where that is not worth it.
        """
        ratios: list[float] = []
        for order in ((best, more), (more, best)):
            if not self._has_time(more, best):
                self._untried.append(shown(more))
                return 0.0
            steps = {}
            for settings in order:
                outcome = self._try("together", settings, known, kept=kept)
                if outcome is None:
                    return 0.0
                steps[settings is more] = outcome.step
            ratios.append(steps[False] / steps[True])
            if median(ratios) < HELPS:
                return 0.0
        if not best:
            self._pairs.append((more, ratios))
        return median(ratios)

    def _in_turns(self, best: Settings, known: Reference) -> Found:
        """The winner against the rules: A B, B A, …"""
        # what was alone against the rules before has had turns of its own
        self._ratios = next((ratios for settings, ratios in self._pairs if settings == best), [])
        for turn in range(1 if self._ratios else 0, TURNS):
            if self._ratios and not self._has_time({}, best):
                break
            outcomes = {}
            for settings in ({}, best) if turn % 2 == 0 else (best, {}):
                outcomes[bool(settings)] = self._try("turns", settings, known, thorough=True)
            rules, winner = outcomes[False], outcomes[True]
            if rules is None or winner is None:
                return self._stays("the fastest failed when it was run again")
            self._ratios.append(rules.step / winner.step)
        middle, least = median(self._ratios), min(self._ratios)
        turns = f"{least:.2f} to {max(self._ratios):.2f}"
        if least <= 1.0 or middle < BEATS:
            return self._stays(
                f"the fastest was {middle:.2f} times as fast ({turns}), which is within the noise"
            )
        return self._chosen(
            best,
            Speedup(median=middle, lowest=least, highest=max(self._ratios)),
            f"{len(self._ratios)} turn{'s' * (len(self._ratios) > 1)}, {turns}",
        )

    def _so_far(self) -> Found:
        """What to make of a search that was interrupted."""
        speedup, settings = self._best
        if self._ratios:
            speedup = median(self._ratios)
        if not settings or speedup < CLEARLY:
            return self._stays("interrupted before anything was clearly faster")
        single = Speedup(median=speedup, lowest=speedup, highest=speedup)
        return self._chosen(settings, single, "interrupted, so not confirmed in turns")

    # -- trials

    def _try(
        self,
        stage: str,
        settings: Settings,
        known: Reference,
        *,
        thorough: bool = False,
        kept: float = 0.0,
    ) -> Outcome | None:
        """A trial whose losses are right; None where it is no good."""
        outcome = self._ran(stage, settings, thorough=thorough, kept=kept)
        if outcome.fault:
            self._ledger.add(settings, outcome, None)
            self._note(stage, settings, outcome, None, outcome.fault, good=False)
            return None
        verdict = check(known, outcome.losses, reduced=_reduced(settings))
        self._ledger.add(settings, outcome, verdict.worst)
        speedup = self._pace / outcome.step if settings and self._pace else None
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
        """A trial; seconds that are kept for others are not for it."""
        self._watcher.begins(stage, None if disturbed else settings, self.left())
        longest = self._budget if stage == "python" else max(SHORTEST, self.left() - kept)
        return self._run(
            self._script,
            settings if settings is None or disturbed else {**self._fixed, **settings},
            disturbed=disturbed,
            thorough=thorough,
            longest=longest,
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
        self._trials.append(trial)
        self._watcher.ended(trial)

    def _has_time(self, *which: Settings, runs: int = 0) -> bool:
        """For these, for as many others, and for a turn that is to follow."""
        known = sum(map(self._ledger.cost, which))
        return self.left() > known + self._ledger.usual_cost() * (runs + 2)

    # -- what came of it

    def _chosen(self, settings: Settings, speedup: Speedup, how: str) -> Found:
        later = self._ledger.later(settings)
        saved = self._pace * (1 - 1 / speedup.median)
        pays_after = max(0, round(later / saved))
        if pays_after * self._pace > LONGEST_WAIT:
            return self._stays(
                f"{shown(settings)} is {speedup.median:.2f} times as fast, but starts "
                f"{later:.0f} s later, which pays after {pays_after} steps only"
            )
        return Found(
            settings=settings,
            against_rules=speedup,
            against_python=self._rules_gain * speedup.median,
            reason=f"{speedup.median:.2f} times as fast as the rules with {shown(settings)} "
            f"({how})",
            reduced=_reduced(settings),
            loss_difference=self._ledger.difference(settings),
            later=later,
            pays_after=pays_after,
            **self._all(),
        )

    def _stays(self, reason: str) -> Found:
        return Found(
            settings={},
            against_rules=None,
            against_python=self._rules_gain or None,
            reason=reason,
            reduced=False,
            loss_difference=None,
            later=None,
            pays_after=None,
            **self._all(),
        )

    def _all(self) -> dict[str, Any]:
        return {
            "untried": tuple(self._untried),
            "trials": tuple(self._trials),
            "seconds": time.monotonic() - self._begin,
        }


_PLAIN = {
    "allocator": "default",
    "huge_pages": "off",
    "flush_denormals": "off",
    "fused_optimizer": "off",
    "loader": "off",
    "short_waits": "off",
}
"""What makes a launch plain python but for its threads."""


def _reduced(settings: Settings) -> bool:
    return any(settings.get(knob, "float32") != "float32" for knob in REDUCED)


def _is_worse_and_worse(steps: Sequence[float]) -> bool:
    last = steps[-WORSE - 1 :]
    return len(last) > WORSE and all(b > a for a, b in pairwise(last))
