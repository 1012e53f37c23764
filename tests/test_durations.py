"""Every folder of tests has a budget, and a folder far beyond it is named."""

from __future__ import annotations

from pathlib import Path

from tests.durations import Durations, budgets, over_budget

TESTS = Path(__file__).parent


def test_every_folder_has_a_budget() -> None:
    folders = {path.parent.name for path in TESTS.glob("*/test_*.py")}
    assert budgets().keys() == {"", *folders}


def test_seconds_are_added_up_by_folder() -> None:
    durations = Durations()
    durations.add("tests/split/test_a.py::test_one", 1.0)
    durations.add("tests/split/test_a.py::test_one", 2.0)  # its setup and its call
    durations.add("tests/split/deep/test_b.py::test_two[a/b]", 0.5)
    durations.add("tests/test_golden.py::test_names", 0.25)
    assert durations.by_folder() == {"split": 3.5, "": 0.25}
    assert durations.slowest(1) == [("tests/split/test_a.py::test_one", 3.0)]


def test_a_folder_that_takes_twice_its_time_is_named() -> None:
    allowed = {"split": 10, "data": 10, "step": 10}
    assert over_budget({"split": 10.0, "data": 20.1, "step": 1.0}, allowed) == [
        "tests/data took 20 s, more than 2 times its budget of 10 s"
    ]
    assert over_budget({"new": 0.1}, {"data": 10}) == ["tests/new has no budget in CONTRIBUTING.md"]


def test_a_machine_that_is_slow_in_most_folders_is_allowed_more() -> None:
    allowed = {"split": 10, "data": 10, "step": 10}
    assert over_budget({"split": 30.0, "data": 30.0, "step": 59.0}, allowed) == []
    assert over_budget({"split": 30.0, "data": 30.0, "step": 61.0}, allowed) == [
        "tests/step took 61 s, more than 6 times its budget of 10 s"
    ]
    assert over_budget({"split": 1.0, "data": 1.0, "step": 21.0}, allowed) == [
        "tests/step took 21 s, more than 2 times its budget of 10 s"
    ]
