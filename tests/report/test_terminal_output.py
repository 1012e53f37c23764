"""Terminal output of machines and plans."""

import io
import pathlib

import pytest

from cputrain.errors import UsageError
from cputrain.machine import read_machine
from cputrain.machine.capture import read_capture
from cputrain.plan import Request, make_plan
from cputrain.report.machines import show_machine
from cputrain.report.plans import show_plan, why_not
from cputrain.report.terminal import console

MACHINES = sorted((pathlib.Path(__file__).parents[1] / "machines").glob("*.json"))


def shown(show, *values):
    stream = io.StringIO()
    show(console(stream), *values)
    return stream.getvalue()


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_every_captured_machine_is_shown_without_a_gap(path):
    """Unknown facts are omitted, not shown as None."""
    machine = read_machine(read_capture(str(path)))
    text = shown(show_machine, machine, None)
    assert "None" not in text
    assert f"cores           {machine.budget.physical_cores}\n" in "\n".join(
        line.rstrip() + "\n" for line in text.splitlines()
    )


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_every_plan_is_shown_with_all_its_reasons(path):
    """The table has each decision, and `--why-not` explains every rejected value."""
    plan = make_plan(read_machine(read_capture(str(path))), Request())
    words = shown(show_plan, plan).split()
    for decision in plan.decisions:
        # a path longer than its column is folded
        assert {word for word in decision.reason.split() if len(word) < 20} <= set(words)
        for name in decision.rejected:
            assert decision.rejected[name] in why_not(plan, name)


def test_why_not_of_an_unknown_name_lists_the_known_names():
    plan = make_plan(read_machine(read_capture(str(MACHINES[0]))), Request())
    with pytest.raises(UsageError, match=r"must be a setting .*threads.*'warp drive'"):
        why_not(plan, "warp drive")


def test_color_follows_the_environment(monkeypatch):
    """A pipe has colors only with FORCE_COLOR."""
    machine = read_machine(read_capture(str(MACHINES[0])))
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b[" not in shown(show_machine, machine, None)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in shown(show_machine, machine, None)
