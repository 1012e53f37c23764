"""The search, on a machine whose noise is known: what it chooses is faster, or the rules stay."""

from __future__ import annotations

import random
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from cputrain.machine import RootSource, read_machine
from cputrain.plan import Request, make_plan
from cputrain.tune import runner
from cputrain.tune.exhaustive import ExhaustiveSearch
from cputrain.tune.result import NothingToTuneError, settings_text
from cputrain.tune.search import Search
from cputrain.tune.trial import TrialOutcome

MACHINE = read_machine(RootSource(), detail=False)
PLAN = make_plan(MACHINE, Request())
LOSSES = tuple(1 / (1 + step) for step in range(30))


class Machine:
    """Runs in no time: each value makes a step so many times as long, with noise and drift."""

    def __init__(
        self,
        factors: dict[tuple[str, str], float],
        *,
        seed: int = 0,
        python: float = 1.5,
        drift: float = 0.2,
    ) -> None:
        self.factors = factors
        self.drift = drift
        self.python = python
        self.random = random.Random(seed)
        self.runs: list[Any] = []
        self.wrong: set[tuple[str, str]] = set()
        self.failing: set[tuple[str, str]] = set()
        self.late: dict[tuple[str, str], float] = {}

    def __call__(
        self,
        _script: object,
        settings: dict[str, str] | None,
        *,
        disturbed: bool = False,
        **_: object,
    ) -> TrialOutcome:
        pairs = set((settings or {}).items())
        self.runs.append(settings)
        if pairs & self.failing:
            return TrialOutcome(
                settings=settings, fault="it ended with exit code 1: boom", elapsed_s=1.0
            )
        step = (
            0.01
            * (self.python if settings is None else 1.0)
            * (1 + self.drift * (len(self.runs) // 4 % 2))
        )
        for pair in pairs:
            step *= self.factors.get(pair, 1.0)
        step *= self.random.uniform(0.99, 1.01)
        scale = 1.01 if pairs & self.wrong else 1.0 + 1e-7 * disturbed
        return TrialOutcome(
            settings=settings,
            times=(step,) * 20,
            waits=(0.0,) * 20,
            losses=tuple(scale * loss for loss in LOSSES),
            num_optimizers=1,
            startup_s=2.0 + sum(self.late.get(pair, 0.0) for pair in pairs),
            elapsed_s=0.0,
        )


def setting(name: str, *values: str, is_monotonic: bool = False) -> Any:
    return SimpleNamespace(name=name, candidates=lambda _: list(values), is_monotonic=is_monotonic)


TRIED = [setting("threads", "1", "2"), setting("a", "on"), setting("b", "on"), setting("c", "on")]


def search(machine: Machine, **options: Any) -> Any:
    values: Any = {"fixed": {}, "tried": TRIED, "tried_last": [], "run": machine, **options}
    script: Any = None
    return Search(script, MACHINE, PLAN, **values).run()


def test_what_helps_is_put_together_and_what_does_not_is_left_out() -> None:
    machine = Machine({("threads", "2"): 0.7, ("a", "on"): 0.8, ("b", "on"): 1.03})
    result = search(machine)
    assert result.settings == {"threads": "2", "a": "on"}
    assert result.against_rules.median == pytest.approx(1 / 0.56, rel=0.25)
    assert result.against_python == pytest.approx(1.5 / 0.56, rel=0.4)
    assert "threads 2, a on" in result.reason
    assert not result.reduced


def test_figures_that_vary_by_more_than_the_gain_change_nothing() -> None:
    class Busy(Machine):
        """Another program takes the cores in every third trial under the rules."""

        def __call__(self, *arguments: Any, **options: Any) -> TrialOutcome:
            outcome = super().__call__(*arguments, **options)
            if outcome.settings == {} and len(self.runs) % 3 == 0:
                return outcome.replace(times=tuple(20 * step for step in outcome.times))
            return outcome

    result = search(Busy({("a", "on"): 0.8}))
    assert result.settings == {}
    assert "the figures are rough" in result.reason
    assert "tune again" in result.reason


def test_the_speed_up_over_python_is_that_of_the_table() -> None:
    result = search(Machine({("a", "on"): 0.5}))
    seconds = [trial.seconds for trial in result.trials if trial.settings == {"a": "on"}]
    python = next(trial.seconds for trial in result.trials if trial.stage == "python")
    assert python is not None
    assert result.against_python == pytest.approx(python / median([s for s in seconds if s]))


@pytest.mark.parametrize("budget", range(6, 30, 2))
def test_what_was_tried_is_not_among_what_was_not(
    monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    """However soon the time is up."""
    seconds = [0.0]

    class Slow(Machine):
        def __call__(self, *arguments: Any, **options: Any) -> TrialOutcome:
            seconds[0] += 1.0
            return super().__call__(*arguments, **options).replace(elapsed_s=1.0)

    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    result = search(Slow({("a", "on"): 0.8, ("b", "on"): 0.7}), budget=float(budget))
    tried = {settings_text(trial.settings or {}) for trial in result.trials}
    assert not tried & set(result.untried)
    assert len(set(result.unconfirmed)) == len(result.unconfirmed)


def test_candidates_know_what_part_of_a_step_waits_for_data() -> None:
    class Waiting(Machine):
        def __call__(self, *arguments: Any, **options: Any) -> TrialOutcome:
            outcome = super().__call__(*arguments, **options)
            return outcome.replace(waits=tuple(step / 4 for step in outcome.times))

    seen = []

    def candidates(situation: Any) -> list[str]:
        seen.append(situation)
        return []

    asks = SimpleNamespace(name="loader", candidates=candidates, is_monotonic=False)
    search(Waiting({}), tried=[asks])
    assert [situation.wait_fraction for situation in seen] == [pytest.approx(0.25)]


@pytest.mark.parametrize("seed", range(8))
def test_what_is_slower_by_three_percent_is_not_chosen(seed: int) -> None:
    result = search(Machine({("a", "on"): 1.03, ("b", "on"): 1.0}, seed=seed))
    assert result.settings == {}
    assert result.against_rules is None


def test_rules_that_are_slower_than_python_are_given_up() -> None:
    rules = {("fused_optimizer", "off"): 0.5}
    result = search(Machine(rules, python=0.55), tried=[])
    assert result.settings["fused_optimizer"] == "off"
    assert result.settings["allocator"] == "default"
    assert result.against_python > 0.9
    fixed = search(Machine(rules, python=0.55), tried=[], fixed={"allocator": "tuned"})
    assert "allocator" not in fixed.settings


def test_what_costs_much_is_tried_on_top_of_the_best() -> None:
    late = [setting("late", "on")]
    machine = Machine({("a", "on"): 0.8, ("late", "on"): 0.9})
    assert search(machine, tried_last=late).settings == {"a": "on", "late": "on"}
    assert {"late": "on"} not in machine.runs
    machine.factors["late", "on"] = 1.1
    assert search(machine, tried_last=late).settings == {"a": "on"}
    alone = Machine({("late", "on"): 0.9})
    assert search(alone, tried_last=late).settings == {"late": "on"}
    assert search(alone, tried_last=late, fixed={"late": "off"}).settings == {}


def test_two_searches_choose_equally_fast_plans() -> None:
    factors = {("threads", "2"): 0.7, ("a", "on"): 0.8, ("c", "on"): 0.79}
    chosen = [search(Machine(factors, seed=seed)).settings for seed in range(4)]
    for settings in chosen:
        speed = 1.0
        for pair in settings.items():
            speed *= factors.get(pair, 1.0)
        assert speed == pytest.approx(0.7 * 0.8 * 0.79, rel=0.03)


def test_what_is_wrong_or_fails_is_rejected_by_name_however_fast() -> None:
    machine = Machine({("a", "on"): 0.1, ("b", "on"): 0.1, ("c", "on"): 0.9})
    machine.wrong, machine.failing = {("a", "on")}, {("b", "on")}
    result = search(machine)
    assert result.settings == {"c": "on"}
    rejected = {str(one.settings): one.says for one in result.trials if not one.good}
    assert "differs from plain python's by" in rejected["{'a': 'on'}"]
    assert "boom" in rejected["{'b': 'on'}"]


def test_what_the_user_has_set_stays() -> None:
    machine = Machine({("threads", "2"): 0.5, ("a", "on"): 0.8})
    result = search(machine, fixed={"threads": "4"})
    assert result.settings == {"a": "on"}
    assert all(one is None or one["threads"] == "4" for one in machine.runs[2:])


def test_without_time_the_rules_stay() -> None:
    result = search(Machine({("a", "on"): 0.5}), budget=-1.0)
    assert result.settings == {}
    assert len(result.trials) == 2


def interrupted(machine: Machine, after: int) -> Any:
    """A search that is interrupted after so many runs."""

    def run(*args: Any, **options: Any) -> TrialOutcome:
        if len(machine.runs) == after:
            raise KeyboardInterrupt
        return machine(*args, **options)

    return search(machine, run=run)


@pytest.mark.parametrize("after", [7, 10, 15, 20])
def test_an_interrupt_keeps_the_best_so_far(after: int) -> None:
    result = interrupted(Machine({("threads", "2"): 0.5, ("a", "on"): 0.7}), after)
    assert result.settings["threads"] == "2"
    assert ("a" in result.settings) == (after == 20)
    assert "interrupted" in result.reason or after == 20


@pytest.mark.parametrize("after", [4, 8])
def test_an_interrupt_keeps_the_rules_where_nothing_is_clearly_faster(after: int) -> None:
    result = interrupted(Machine({("threads", "2"): 0.95}), after)
    assert result.settings == {}
    assert "interrupted" in result.reason


def test_an_interrupt_before_there_is_anything_to_keep_is_one() -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(Machine({}), 1)


def test_values_in_steps_are_left_when_they_get_slower_and_slower() -> None:
    machine = Machine({("n", str(n)): (1.5, 2.0, 3.0, 0.1)[n] for n in range(4)})
    search(machine, tried=[setting("n", *"0123", is_monotonic=True)])
    assert {"n": "1"} in machine.runs
    assert {"n": "2"} not in machine.runs
    result = search(machine, tried=[setting("n", *"0123")])
    assert result.settings == {"n": "3"}


def test_a_late_start_must_pay() -> None:
    factors = {("a", "on"): 0.8, ("late", "on"): 0.8}
    machine = Machine(factors)
    machine.late = {("late", "on"): 20.0}
    result = search(machine, tried_last=[setting("late", "on")])
    assert result.settings == {"a": "on", "late": "on"}
    assert result.later == pytest.approx(20.0)
    assert result.pays_after == pytest.approx(20 / 0.0036, rel=0.5)
    machine = Machine(factors)
    machine.late = {("late", "on"): 600.0}
    result = search(machine, tried_last=[setting("late", "on")])
    assert result.settings == {"a": "on"}
    assert "late on is 1.2" in result.reason
    assert "times as fast again, but starts 600 s later, which pays off only after" in result.reason


def test_what_there_was_no_time_for_is_told() -> None:
    result = search(Machine({}), budget=0.0)
    assert result.untried == ("threads 1", "threads 2", "a on", "b on", "c on")
    assert "no time was left for candidates" in result.reason


def a_second_each(
    monkeypatch: pytest.MonkeyPatch, factors: dict[tuple[str, str], float]
) -> Machine:
    """A machine on which each run takes a second of the budget."""
    seconds = [0.0]

    class Slow(Machine):
        def __call__(self, *args: Any, **options: Any) -> TrialOutcome:
            seconds[0] += 1
            return super().__call__(*args, **options).replace(elapsed_s=1.0)

    monkeypatch.setattr(runner, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return Slow(factors, drift=0.0)


@pytest.mark.parametrize("budget", [20.0, 40.0])
def test_time_is_kept_to_put_together_what_helps(
    monkeypatch: pytest.MonkeyPatch, budget: float
) -> None:
    machine = a_second_each(monkeypatch, {("a", "on"): 0.7, ("b", "on"): 0.8})
    tried = [setting(name, "on") for name in "abcdefghij"]
    result = search(machine, tried=tried, budget=budget)
    assert result.settings == {"a": "on", "b": "on"}
    assert bool(result.untried) is (budget < 30)


def test_one_value_is_tried_where_there_is_time_for_it_and_a_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = a_second_each(monkeypatch, {("a", "on"): 0.7})
    result = search(machine, tried=[setting("a", "on"), setting("b", "on")], budget=6.5)
    assert result.settings == {"a": "on"}
    assert result.untried == ("b on",)


def test_what_is_clearly_faster_side_by_side_is_not_lost_when_time_is_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = a_second_each(monkeypatch, {("a", "on"): 0.7})
    result = search(machine, tried=[setting("a", "on")], budget=9.5)
    assert [trial.stage for trial in result.trials].count("together") == 2
    assert result.settings == {"a": "on"}
    assert "(1 turn" in result.reason


@pytest.mark.parametrize(("factor", "kept"), [(0.7, True), (0.95, False)])
def test_what_is_clearly_faster_in_one_turn_is_kept_when_time_is_short(
    monkeypatch: pytest.MonkeyPatch, factor: float, kept: bool
) -> None:
    machine = a_second_each(monkeypatch, {("a", "on"): factor})
    result = search(machine, tried=[setting("a", "on")], budget=8.0)
    assert (result.settings == {"a": "on"}) is kept
    assert len([trial for trial in result.trials if trial.stage == "turns"]) == 2
    assert ("1 turn" if kept else "only turn: no time was left to confirm it") in result.reason


def test_whoever_watches_hears_of_every_trial() -> None:
    heard: list[Any] = []
    watcher = SimpleNamespace(
        trial_started=lambda stage, settings, left: heard.append((stage, settings, left > 0)),
        trial_ended=lambda trial: heard.append(trial),
    )
    result = search(Machine({("a", "on"): 0.8}), watcher=watcher)
    assert heard[0] == ("python", None, True)
    assert [one for one in heard if not isinstance(one, tuple)] == list(result.trials)


def test_a_script_that_does_not_train_is_told() -> None:
    def run(*_: Any, **__: Any) -> TrialOutcome:
        return TrialOutcome(settings=None, fault="no optimizer took a step")

    with pytest.raises(NothingToTuneError, match="no optimizer took a step"):
        search(Machine({}), run=run)


def test_plain_python_is_granted_a_minute_of_a_short_budget() -> None:
    granted: list[float] = []

    def run(*_: Any, longest: float, **__: Any) -> TrialOutcome:
        granted.append(longest)
        return TrialOutcome(settings=None, fault="it did not", advice="Try more.")

    with pytest.raises(NothingToTuneError) as raised:
        search(Machine({}), run=run, budget=10.0)
    assert raised.value.advice == "Try more."
    assert granted == [60.0]


def test_every_combination_is_tried_and_the_fastest_is_found() -> None:
    class Together(Machine):
        """Two that help only with one another: a search that tries each alone misses them."""

        def __call__(self, script: object, settings: Any, **rest: Any) -> TrialOutcome:
            outcome = super().__call__(script, settings, **rest)
            both = (settings or {}).get("a") == (settings or {}).get("b") == "on"
            return outcome.replace(times=tuple(t * (0.5 if both else 1.0) for t in outcome.times))

    machine = Together({("a", "on"): 1.1, ("b", "on"): 1.05, ("c", "on"): 0.5}, drift=0.0)
    machine.wrong = {("c", "on")}
    script: Any = None
    every = ExhaustiveSearch(
        script, MACHINE, PLAN, fixed={}, tried=TRIED, tried_last=[], run=machine
    ).run()
    assert {**every.settings, "threads": ""} == {"a": "on", "b": "on", "threads": ""}
    assert every.against_rules.median == pytest.approx(1 / (0.5 * 1.1 * 1.05), rel=0.1)
    tried = [trial.settings for trial in every.trials if trial.stage == "every"]
    assert len({str(settings) for settings in tried}) == 3 * 2 * 2 * 2
    assert sum("c" in (settings or {}) for settings in tried) == 12  # once each
    assert not search(machine).settings


def test_a_slow_script_is_not_slowed_down_to_know_its_noise() -> None:
    """Plain python again, with half the threads if that takes little of the time there is."""

    class Slow(Machine):
        def __call__(self, script: object, settings: Any, **rest: Any) -> TrialOutcome:
            return super().__call__(script, settings, **rest).replace(elapsed_s=20.0)

    usual = PLAN.value("threads")
    for budget, threads in ((300.0, usual // 2 or 2), (150.0, usual)):
        machine = Slow({})
        search(machine, budget=budget)
        assert machine.runs[1]["threads"] == str(threads)


def test_time_is_kept_for_turns_that_take_longer_than_trials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a slow script a trial sees a few steps; a turn, as many as the losses need."""
    clock = [0.0]
    monkeypatch.setattr(runner.time, "monotonic", lambda: clock[0])

    class Slow(Machine):
        def __call__(self, script: object, settings: Any, **rest: Any) -> TrialOutcome:
            thorough = rest.pop("thorough", False)
            elapsed_s = 45.0 if thorough else 14.0
            clock[0] += min(elapsed_s, rest["longest"])
            outcome = super().__call__(script, settings, **rest)
            if elapsed_s > rest["longest"]:
                return TrialOutcome(
                    settings=settings, fault="it did not complete its steps", elapsed_s=elapsed_s
                )
            return outcome.replace(elapsed_s=elapsed_s)

    result = search(Slow({("threads", "2"): 0.8}, drift=0.0), budget=300.0)
    assert result.settings == {"threads": "2"}
