"""Which backend a plan has: torch's own, but for what is known to be right, or asked for."""

from __future__ import annotations

import pytest

from cputrain.errors import UsageError
from cputrain.machine import read_machine
from cputrain.plan import Change, Origin, Request, UserValue, make_plan
from cputrain.settings.backend import SETTING, Candidate, Suits, decided

MACHINE = read_machine(detail=False)

WRONG = Suits(fault="it was wrong: attention: its gradient is not a number")
SLOW = Suits(seen="right, 0.80 times as fast")


def fast(gain):
    return Suits(gain=gain, seen=f"right, {gain:.2f} times as fast")


def candidate(name, training, evaluation, **more):
    return Candidate(name=name, training=training, evaluation=evaluation, **more)


def decision(*backends, **settings):
    given = {name: UserValue(value=value, where=f"--{name}") for name, value in settings.items()}
    return SETTING.decide(MACHINE, Request(settings=given, backends=backends))


def test_nothing_is_known_and_nothing_changes():
    found = decision()
    assert (found.value, found.change, found.environment) == (None, Change.NONE, {})
    assert "cputrain info --backends --measure" in found.rejected["others"]


def test_the_fastest_that_is_right_is_chosen_for_each():
    one = candidate("one", fast(1.2), WRONG, environment={"ONE": "1"})
    other = candidate("other", fast(1.1), fast(1.4), environment={"OTHER": "2"})
    wrong = candidate("wrong", WRONG, WRONG)
    found = decision(one, other, wrong)
    assert found.value.as_json() == {
        "training": "one", "evaluation": "other", "asked": False, "unsafe": False,
    }  # fmt: skip
    assert found.environment == {"ONE": "1", "OTHER": "2"}
    assert found.origin is Origin.MEASURED
    assert found.change is Change.EXACT
    assert "1.20 times" in found.reason
    assert "1.40 times" in found.reason


def test_what_is_wrong_or_slow_is_not_and_says_why():
    found = decision(candidate("one", WRONG, SLOW))
    assert found.value is None
    assert "not a number" in found.rejected["one"]
    assert "0.80 times" in found.rejected["one"]


def test_what_is_asked_for_is_used_where_it_is_right():
    found = decision(candidate("one", WRONG, SLOW), backend="one")
    assert found.value.as_json() == {
        "training": None, "evaluation": "one", "asked": True, "unsafe": False,
    }  # fmt: skip
    assert found.origin is Origin.USER
    assert "one is used in evaluation alone" in found.warning
    assert "not a number" in found.warning


def test_what_is_wrong_in_both_is_refused_unless_that_is_wanted():
    with pytest.raises(UsageError, match=r"not a number.*--unsafe uses it all the same"):
        decision(candidate("one", WRONG, WRONG), backend="one")
    found = decision(candidate("one", WRONG, WRONG, unsafe=True), backend="one")
    assert found.value.as_json() == {
        "training": "one", "evaluation": "one", "asked": True, "unsafe": True,
    }  # fmt: skip
    assert found.change is Change.REDUCED
    assert "one is used though it is not right" in found.warning
    assert "not a number" in found.warning


def test_nobody_does_what_he_does_not_claim_to():
    none = Suits(claims=False, fault="it does not claim to train")
    found = decision(candidate("one", none, WRONG, unsafe=True), backend="one")
    assert found.value.training is None
    assert found.value.evaluation == "one"
    found = decision(candidate("one", none, SLOW, unsafe=True), backend="one")
    assert found.change is Change.EXACT
    assert "in evaluation alone" in found.warning


def test_the_default_may_be_asked_for():
    found = decision(candidate("one", fast(2), fast(2)), backend="default")
    assert found.value is None
    assert found.origin is Origin.USER


@pytest.mark.parametrize(
    ("name", "value"),
    [("compile", "on"), ("replicas", "2"), ("replicas", "auto"), ("precision", "bf16")],
)
def test_a_proof_does_not_speak_of_what_else_is_asked_for(name, value):
    one = candidate("one", fast(2), fast(2))
    assert decision(one, **{name: value}).value is None
    with pytest.raises(UsageError, match=f"does not go with --{name} {value}"):
        decision(one, backend="one", **{name: value})


@pytest.mark.parametrize(("name", "value"), [("compile", "auto"), ("replicas", "1")])
def test_what_asks_for_nothing_is_no_obstacle(name, value):
    assert decision(candidate("one", fast(2), fast(2)), **{name: value}).value is not None


def test_who_is_not_known_is_refused():
    with pytest.raises(UsageError, match="a running process cannot change it"):
        decision(backend="one")


@pytest.mark.parametrize(
    ("backends", "settings"),
    [
        ((), {}),
        ((candidate("one", fast(1.2), WRONG), candidate("two", SLOW, fast(1.4))), {}),
        ((candidate("one", WRONG, SLOW),), {"backend": "one"}),
        ((candidate("one", WRONG, WRONG, unsafe=True),), {"backend": "one"}),
    ],
)
def test_a_rank_decides_as_the_whole_machine_did(backends, settings):
    value = decision(*backends, **settings).value
    assert decision(*decided(value), **settings).value == value


def test_a_plan_has_it():
    one = candidate("one", fast(1.2), WRONG)
    plan = make_plan(MACHINE, Request(backends=(one,)))
    assert plan.value("backend").training == "one"
