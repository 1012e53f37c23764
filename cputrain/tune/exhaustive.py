"""Every combination of what the search tries, which takes long: what the search is measured by."""

from __future__ import annotations

from itertools import product

from cputrain.bench.compare import Speedup, median
from cputrain.record import Record
from cputrain.tune.candidates import KNOBS, LATE, Situation
from cputrain.tune.found import Found
from cputrain.tune.losses import reference
from cputrain.tune.runs import Runs, is_reduced
from cputrain.tune.trial import run_trial

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.candidates import Knob
    from cputrain.tune.found import Watcher
    from cputrain.tune.losses import Reference
    from cputrain.tune.trial import Outcome, Script

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


class Exhaustive:
    """Like a search, without a budget."""

    def __init__(
        self,
        script: Script,
        machine: Machine,
        plan: Plan,
        *,
        fixed: Mapping[str, str],
        precision: str = "float32",
        budget: float = float("inf"),
        watcher: Watcher | None = None,
        knobs: Sequence[Knob] = (*KNOBS, *LATE),
        run: Callable[..., Outcome] = run_trial,
    ) -> None:
        self._runs = Runs(script, fixed=fixed, budget=budget, watcher=watcher, run=run)
        self._machine = machine
        self._plan = plan
        self._fixed = fixed
        self._precision = precision
        self._knobs = knobs

    def run(self) -> Found:
        """All of them, and those that were fastest again."""
        python = self._runs.plain()
        other = self._runs.disturbed(self._plan.value("threads"))
        known = reference([python.losses, *([other.losses] if other else [])])
        rules = self._runs.attempt("rules", {}, known)
        if rules is None:
            raise RuntimeError("the plan by rules came to nothing: there is nothing to compare")
        self._runs.pace = rules.step
        situation = Situation(
            machine=self._machine, plan=self._plan, rules=rules, precision=self._precision
        )
        every = [Combination(settings=one, steps=[]) for one in self._all(situation)]
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
            untried=(),
            trials=tuple(self._runs.trials),
            seconds=self._runs.seconds(),
        )

    def _all(self, situation: Situation) -> Iterator[Settings]:
        """The plan by rules first."""
        knobs = [knob for knob in self._knobs if knob.KNOB not in self._fixed]
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
