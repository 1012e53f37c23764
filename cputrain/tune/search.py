"""Finding the plan that is fastest for a script, within a budget of time.

First plain python, twice, for the losses; then the plan by rules, and every value of every knob
alone, with the rules in between. What helped is added to the best so far, one after the other, the
most helpful first, if the two are so in turns. In the end the winner and the plan by rules run in
turns: it must be faster in every turn, and by more than the noise, or the rules stay.
"""

from __future__ import annotations

import time

from cputrain.bench.compare import Speedup, median
from cputrain.record import Record
from cputrain.tune.candidates import KNOBS, Situation
from cputrain.tune.losses import check, reference
from cputrain.tune.trial import run_trial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from cputrain.machine import Machine
    from cputrain.tune.candidates import Knob
    from cputrain.tune.losses import Reference
    from cputrain.tune.trial import Outcome, Script

    Settings = dict[str, str]

HELPS = 1.02
"""How many times as fast a value must be to be looked at again."""

BEATS = 1.03
"""How many times as fast the winner must be in the end."""

TURNS = 3
"""How often the winner and the rules run in turns, if there is time."""

BETWEEN = 2
"""Candidates between two runs of the rules."""

REDUCED = frozenset({"precision"})
"""Knobs whose values other than float32 have fewer bits."""


class Trial(Record):
    """A candidate, and what was found."""

    stage: str
    """ "python", "rules", "alone", "together" or "turns"."""

    settings: Settings | None
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

    settings: Settings
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

    first_step_later: float | None
    """Seconds by which its first step ends later than that of the rules: compiling, mostly."""

    trials: tuple[Trial, ...]
    """Everything that was run."""

    seconds: float
    """How long that took."""


class NothingToTuneError(Exception):
    """Plain python did not train: its text says what it did."""


class Search:
    """One search: what was tried so far, and the best."""

    def __init__(
        self,
        script: Script,
        machine: Machine,
        threads: int,
        *,
        fixed: Mapping[str, str],
        precision: str = "float32",
        budget: float = 120.0,
        on_trial: Callable[[Trial], None] = lambda _: None,
        knobs: Sequence[Knob] = KNOBS,
        run: Callable[..., Outcome] = run_trial,
    ) -> None:
        self._script = script
        self._machine = machine
        self._threads = threads
        self._fixed = fixed
        self._precision = precision
        self._end = time.monotonic() + budget
        self._begin = time.monotonic()
        self._on_trial = on_trial
        self._knobs = knobs
        self._run = run
        self._trials: list[Trial] = []
        self._pace = self._rules_gain = 0.0
        """Seconds of a step by the rules, at the latest; and how many times as fast as python."""
        self._costs: list[float] = []

    def run(self) -> Found:
        """Search until there is nothing left to try, or no time."""
        try:
            return self._search()
        except KeyboardInterrupt:
            if self._pace == 0.0:
                raise
            return self._stays("interrupted before anything was confirmed")

    def left(self) -> float:
        """Seconds of the budget."""
        return self._end - time.monotonic()

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
            machine=self._machine, threads=self._threads, rules=rules, precision=self._precision
        )
        helpful = self._alone(situation, known)
        best = self._together(helpful, known)
        if not best:
            return self._stays("nothing that was tried is faster")
        return self._in_turns(best, known)

    # -- stages

    def _plain(self) -> Outcome:
        outcome = self._run(self._script, None)
        self._costs.append(outcome.took)
        if outcome.fault:
            raise NothingToTuneError(outcome.fault)
        self._note("python", None, outcome, None, "what the others are compared with")
        return outcome

    def _disturbed(self) -> Outcome | None:
        """Plain python with another order of additions, and noise as small as rounding."""
        other = str(self._threads // 2 if self._threads > 1 else 2)
        outcome = self._run(self._script, {**_PLAIN, "threads": other}, disturbed=True)
        self._costs.append(outcome.took)
        return None if outcome.fault else outcome

    def _alone(self, situation: Situation, known: Reference) -> list[Settings]:
        """Every value by itself: those that help, the most helpful first."""
        candidates = [
            {knob.KNOB: value}
            for knob in self._knobs
            if knob.KNOB not in self._fixed
            for value in knob.values(situation)
        ]
        found: list[tuple[float, Settings]] = []
        for at in range(0, len(candidates), BETWEEN):
            before = self._pace
            tried = [
                (settings, self._try("alone", settings, known))
                for settings in candidates[at : at + BETWEEN]
                if self._has_time()
            ]
            if not tried:
                break
            rules = self._try("rules", {}, known)
            self._pace = rules.step if rules is not None else before
            for place, (settings, outcome) in enumerate(tried, 1):
                if outcome is not None:
                    # the machine may have changed its pace between the two runs of the rules
                    part = place / (len(tried) + 1)
                    speedup = (before + part * (self._pace - before)) / outcome.step
                    if speedup >= HELPS:
                        found.append((speedup, settings))
        return [settings for _, settings in sorted(found, key=lambda one: -one[0])]

    def _together(self, helpful: list[Settings], known: Reference) -> Settings:
        """What helped, added to the best so far as long as it helps still."""
        best: Settings = {}
        for settings in helpful:
            more = {**best, **settings}
            if not any(knob in best for knob in settings) and self._is_faster(more, best, known):
                best = more
        return best

    def _is_faster(self, more: Settings, best: Settings, known: Reference) -> bool:
        """A B, and B A if that looks well: what drifts in between touches both alike."""
        totals = {True: 0.0, False: 0.0}
        for order in ((False, True), (True, False)):
            if not self._has_time(runs=2):
                return False
            for is_more in order:
                outcome = self._try("together", more if is_more else best, known)
                if outcome is None:
                    return False
                totals[is_more] += outcome.step
            if totals[False] < HELPS * totals[True]:
                return False
        return True

    def _in_turns(self, best: Settings, known: Reference) -> Found:
        """The winner against the rules: A B, B A, …"""
        ratios: list[float] = []
        delays: list[float] = []
        worst = 0.0
        for turn in range(TURNS):
            if turn and not self._has_time(runs=2):
                break
            outcomes = {}
            for settings in ({}, best) if turn % 2 == 0 else (best, {}):
                outcomes[bool(settings)] = self._try("turns", settings, known)
            rules, winner = outcomes[False], outcomes[True]
            if rules is None or winner is None:
                return self._stays("the fastest failed when it was run again")
            ratios.append(rules.step / winner.step)
            delays.append((winner.before_first_step or 0.0) - (rules.before_first_step or 0.0))
            worst = max(worst, check(known, winner.losses, reduced=_reduced(best)).worst or 0.0)
        middle = median(ratios)
        if min(ratios) <= 1.0 or middle < BEATS:
            return self._stays(
                f"the fastest was {middle:.2f} times as fast ({min(ratios):.2f} to "
                f"{max(ratios):.2f}), which is within the noise"
            )
        shown = ", ".join(f"{knob} {value}" for knob, value in best.items())
        return self._found(
            settings=best,
            against_rules=Speedup(median=middle, lowest=min(ratios), highest=max(ratios)),
            against_python=self._rules_gain * middle,
            reason=f"{middle:.2f} times as fast as the rules with {shown} ({len(ratios)} turns, "
            f"{min(ratios):.2f} to {max(ratios):.2f})",
            reduced=_reduced(best),
            loss_difference=worst,
            first_step_later=median(delays),
        )

    # -- trials

    def _try(self, stage: str, settings: Settings, known: Reference) -> Outcome | None:
        """A trial whose losses are right; None where it is no good."""
        outcome = self._run(self._script, {**self._fixed, **settings})
        self._costs.append(outcome.took)
        if outcome.fault:
            self._note(stage, settings, outcome, None, outcome.fault, good=False)
            return None
        verdict = check(known, outcome.losses, reduced=_reduced(settings))
        speedup = self._pace / outcome.step if settings and self._pace else None
        self._note(stage, settings, outcome, speedup, verdict.says, good=verdict.good)
        return outcome if verdict.good else None

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
        self._on_trial(trial)

    def _has_time(self, runs: int = 1) -> bool:
        """For so many more, and for the turns that are to follow."""
        return self.left() > median(self._costs) * (runs + 2)

    def _stays(self, reason: str) -> Found:
        return self._found(
            settings={},
            against_rules=None,
            against_python=self._rules_gain or None,
            reason=reason,
            reduced=False,
            loss_difference=None,
            first_step_later=None,
        )

    def _found(self, **values: Any) -> Found:
        return Found(
            **values,
            trials=tuple(self._trials),
            seconds=time.monotonic() - self._begin,
        )


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
