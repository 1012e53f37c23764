"""Every combination of what the search tries, which takes long: what the search is measured by."""

from __future__ import annotations

from itertools import product

from cputrain.bench.compare import Speedup, median
from cputrain.record import Record
from cputrain.tune.candidates import Situation
from cputrain.tune.found import Found
from cputrain.tune.runs import is_reduced
from cputrain.tune.search import Search

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.tune.losses import Reference

    Settings = dict[str, str]

ROUNDS = 2
"""How often every combination runs."""

FINALISTS = 3
"""Of the fastest, so many run again."""

TURNS = 3
"""How often they do."""


class Combination(Record):
    """One of them."""

    settings: Settings
    """What it has beyond the rules."""

    steps: list[float]
    """Seconds of a step, from each run."""

    @property
    def step(self) -> float:
        """The median."""
        return median(self.steps)


class Exhaustive(Search):
    """A search of everything, which keeps to no budget."""

    def run(self) -> Found:
        """All of them, and those that were fastest again."""
        python, known, rules = self._begin()
        if rules is None:
            raise RuntimeError("the plan by rules came to nothing: there is nothing to compare")
        self._runs.pace = rules.step
        situation = Situation(
            machine=self._machine, plan=self._plan, rules=rules, precision=self._precision
        )
        every = [Combination(settings=one, steps=[]) for one in self._combinations(situation)]
        standing = every[0]
        left = self._again(every, ROUNDS, known)
        left = self._again(sorted(left, key=lambda one: one.step)[:FINALISTS], TURNS, known)
        best = min([standing, *left], key=lambda one: one.step)
        gain = standing.step / best.step
        return Found(
            settings=best.settings,
            against_rules=Speedup(median=gain, lowest=gain, highest=gain),
            against_python=python.step / best.step,
            reason=f"{gain:.2f} times as fast as the rules, the fastest of {len(every)}",
            reduced=is_reduced(best.settings),
            loss_difference=self._runs.ledger.difference(best.settings),
            later=self._runs.ledger.later(best.settings),
            pays_after=None,
            **self._all(),
        )

    def _combinations(self, situation: Situation) -> Iterator[Settings]:
        """The plan by rules first."""
        every = (*self._knobs, *self._late_knobs)
        knobs = [knob for knob in every if knob.KNOB not in self._fixed]
        for values in product(*([None, *knob.values(situation)] for knob in knobs)):
            yield {
                knob.KNOB: value
                for knob, value in zip(knobs, values, strict=True)
                if value is not None
            }

    def _again(self, which: list[Combination], rounds: int, known: Reference) -> list[Combination]:
        """Run each so often, in turns: those whose losses were right every time."""
        for _ in range(rounds):
            for one in list(which):
                outcome = self._runs.attempt("every", one.settings, known)
                if outcome is None:
                    which = [other for other in which if other is not one]
                else:
                    one.steps.append(outcome.step)
        return which
