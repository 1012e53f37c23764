"""Finding the plan that is fastest for a script, within a budget of time.

First plain python, twice, for the losses; then the plan by rules, and every value of every knob
alone, with the rules in between. What helped is added to the best so far, one after the other, the
most helpful first, if the two are so in turns; what costs much to try comes after that. In the end
the winner and the plan by rules run in turns: it must be faster in every turn, and by more than the
noise, or the rules stay.
"""

from __future__ import annotations

from itertools import pairwise

from cputrain.bench.compare import Speedup, median
from cputrain.tune.candidates import KNOBS, LATE, Situation
from cputrain.tune.found import Found, shown
from cputrain.tune.losses import reference
from cputrain.tune.runs import PLAIN, Runs, is_reduced
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
"""How many times as fast what ran in turns only once, or not at all, must be to be kept."""

TURNS = 3
"""How often the winner and the rules run in turns, if there is time."""

BETWEEN = 2
"""Candidates between two runs of the rules."""

TOGETHER = 4
"""Runs that it takes to see whether what helped alone helps together with the rest."""

WORSE = 2
"""Values of a knob in steps, each slower than the one before, after which the rest is left out."""

LONGEST_WAIT = 600.0
"""Seconds of training that may pass before a later start has paid."""


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
        self._runs = Runs(script, fixed=fixed, budget=budget, watcher=watcher, run=run)
        self._machine = machine
        self._plan = plan
        self._fixed = fixed
        self._precision = precision
        self._knobs = knobs
        self._late_knobs = late
        self._rules_gain = 0.0
        """How many times as fast as python the rules are."""
        self._best: tuple[float, Settings] = (1.0, {})
        """The fastest so far, from single runs: how many times as fast as the rules."""
        self._pairs: list[tuple[Settings, list[float]]] = []
        """What was put together with the rules alone, and how many times as fast as they it was."""
        self._ratios: list[float] = []
        self._untried: list[str] = []
        self._remarks: list[str] = []

    def run(self) -> Found:
        """Search until there is nothing left to try, or no time."""
        try:
            return self._search()
        except KeyboardInterrupt:
            if self._runs.pace == 0.0:
                raise
            return self._so_far()

    def _begin(self) -> tuple[Outcome, Reference, Outcome | None]:
        """Plain python, what its losses allow, and the rules, unless they came to nothing."""
        python = self._runs.plain()
        other = self._runs.disturbed(self._plan.value("threads"))
        known = reference([python.losses, *([other.losses] if other else [])])
        return python, known, self._runs.attempt("rules", {}, known)

    def _search(self) -> Found:
        python, known, rules = self._begin()
        if rules is None:
            return self._stays("the plan by rules came to nothing")
        self._rules_gain = python.step / rules.step
        self._runs.pace = rules.step
        situation = Situation(
            machine=self._machine, plan=self._plan, rules=rules, precision=self._precision
        )
        best = self._together(self._alone(situation, known), known)
        best = self._late(best, situation, known)
        if not best:
            if all(trial.stage in ("python", "rules") for trial in self._runs.trials):
                usual = self._runs.ledger.usual_cost()
                return self._stays(f"a trial takes {usual:.0f} s: no time was left for more")
            return self._stays("nothing that was tried is faster")
        return self._in_turns(best, known)

    # -- stages

    def _alone(self, situation: Situation, known: Reference) -> list[Settings]:
        """Every value by itself: those that help, the most helpful first."""
        waiting = [
            ([{knob.KNOB: value} for value in knob.values(situation)], knob.IN_STEPS)
            for knob in self._knobs
            if knob.KNOB not in self._fixed
        ]
        if self._rules_gain < 1.0:  # whatever it is that is wrong with the rules
            plain = {knob: value for knob, value in PLAIN.items() if knob not in self._fixed}
            waiting.insert(0, ([plain], False))
        found: list[tuple[float, Settings]] = []
        tried: list[tuple[Settings, Outcome | None]] = []
        before = self._runs.pace
        for candidates, in_steps in waiting:
            steps: list[float] = []
            for number, settings in enumerate(candidates):
                if not self._has_time_alone(tried, found):
                    self._untried += map(shown, candidates[number:])
                    break
                outcome = self._runs.attempt("alone", settings, known)
                tried.append((settings, outcome))
                if len(tried) == BETWEEN:
                    before = self._compare(tried, before, known, found)
                    tried = []
                steps.append(outcome.step if outcome is not None else float("inf"))
                if in_steps and _is_worse_and_worse([self._runs.pace, *steps]):
                    break
        if tried:
            self._compare(tried, before, known, found)
        return [settings for _, settings in sorted(found, key=lambda one: -one[0])]

    def _has_time_alone(
        self, tried: Sequence[object], found: Sequence[tuple[float, Settings]]
    ) -> bool:
        """For one more, and to put what helped so far together, which is worth more."""
        helpful = sum(speedup >= CLEARLY for speedup, _ in found)
        if self._runs.has_time(runs=2 + TOGETHER * helpful):  # it, and the rules after it
            return True
        return not tried and not found and self._runs.has_time(runs=1)

    def _compare(
        self,
        tried: list[tuple[Settings, Outcome | None]],
        before: float,
        known: Reference,
        found: list[tuple[float, Settings]],
    ) -> float:
        """What was tried between two runs of the rules, of which this makes the second.

        It is left out where a turn is all that there is time for: that has the rules in it.
        """
        rules = self._runs.attempt("rules", {}, known) if self._runs.has_time(runs=1) else None
        self._runs.pace = rules.step if rules is not None else before
        for place, (settings, outcome) in enumerate(tried, 1):
            if outcome is not None:
                # the machine may have changed its pace between the two
                part = place / (len(tried) + 1)
                speedup = (before + part * (self._runs.pace - before)) / outcome.step
                if speedup >= HELPS:
                    found.append((speedup, settings))
                    self._best = max(self._best, (speedup, settings), key=lambda one: one[0])
        return self._runs.pace

    def _together(self, helpful: list[Settings], known: Reference) -> Settings:
        """What helped, added to the best so far as long as it helps still."""
        best: Settings = {}
        for settings in helpful:
            more = {**best, **settings}
            if any(knob in best for knob in settings):
                continue
            if not best and not self._runs.has_time(more, best):
                return more  # a turn against the rules is what there is time for
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
                gain = self._gain(more, best, known, kept=2 * self._runs.ledger.cost(best))
                if gain and self._pays(more, best, gain):
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
            if not self._runs.has_time(more, best):
                if ratios and ratios[0] >= CLEARLY:
                    break
                self._untried.append(shown(more))
                return 0.0
            steps = {}
            for settings in order:
                outcome = self._runs.attempt("together", settings, known, kept=kept)
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
            if self._ratios and not self._runs.has_time({}, best):
                break
            outcomes = {}
            for settings in ({}, best) if turn % 2 == 0 else (best, {}):
                outcomes[bool(settings)] = self._runs.attempt(
                    "turns", settings, known, thorough=True
                )
            rules, winner = outcomes[False], outcomes[True]
            if rules is None or winner is None:
                return self._stays("the fastest failed when it was run again")
            self._ratios.append(rules.step / winner.step)
        middle, least = median(self._ratios), min(self._ratios)
        if len(self._ratios) == 1 and middle < CLEARLY:
            return self._stays(
                f"the fastest was {middle:.2f} times as fast, once: no time was left for more"
            )
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

    # -- what came of it

    def _pays(self, more: Settings, best: Settings, gain: float) -> bool:
        """Whether a later start is made up for soon enough."""
        ledger = self._runs.ledger
        later = max(0.0, ledger.later(more) - ledger.later(best))
        step = self._runs.pace / self._best[0]
        steps = later / (step * (1 - 1 / gain))
        if steps * step <= LONGEST_WAIT:
            return True
        value = {knob: value for knob, value in more.items() if knob not in best}
        self._remarks.append(
            f"{shown(value)} is {gain:.2f} times as fast again, but starts {later:.0f} s later, "
            f"which pays after {steps:.0f} steps only"
        )
        return False

    def _chosen(self, settings: Settings, speedup: Speedup, how: str) -> Found:
        later = self._runs.ledger.later(settings)
        saved = self._runs.pace * (1 - 1 / speedup.median)
        reason = f"{speedup.median:.2f} times as fast as the rules with {shown(settings)} ({how})"
        return Found(
            settings=settings,
            against_rules=speedup,
            against_python=self._rules_gain * speedup.median,
            reason="; ".join([reason, *self._remarks]),
            reduced=is_reduced(settings),
            loss_difference=self._runs.ledger.difference(settings),
            later=later,
            pays_after=max(0, round(later / saved)),
            **self._all(),
        )

    def _stays(self, reason: str) -> Found:
        return Found(
            settings={},
            against_rules=None,
            against_python=self._rules_gain or None,
            reason="; ".join([reason, *self._remarks]),
            reduced=False,
            loss_difference=None,
            later=None,
            pays_after=None,
            **self._all(),
        )

    def _all(self) -> dict[str, Any]:
        return {
            "untried": tuple(self._untried),
            "trials": tuple(self._runs.trials),
            "seconds": self._runs.seconds(),
        }


def _is_worse_and_worse(steps: Sequence[float]) -> bool:
    last = steps[-WORSE - 1 :]
    return len(last) > WORSE and all(b > a for a, b in pairwise(last))
