"""HTML for notebooks: complete, escaped, and without scripts, links and fixed colors."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from cputrain.machine import Machine, read_machine
from cputrain.machine.capture import read_capture
from cputrain.notebook.html import setup_html
from cputrain.notebook.outcome import Effect, SetupResult, SetupStep
from cputrain.plan import Request, make_plan
from cputrain.report.html import machine_html, plan_html, search_result_html
from cputrain.tune.result import SearchResult, Trial

MACHINES = sorted((Path(__file__).parents[1] / "machines").glob("*.json"))

EVIL = "<script>alert('\"&')</script>"


class Reader(HTMLParser):
    """Collects text and element names; fails on wrong nesting, links and colors."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text = ""
        self.names: set[str] = set()
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self._open.append(tag)
        for name, value in attrs:
            assert name == "style", name
            assert "url" not in (value or "")
            assert "#" not in (value or ""), "a colour, which one of the themes hides"

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def read(page: str) -> str:
    reader = Reader(page)
    assert reader.names <= {"table", "thead", "tbody", "tr", "th", "td", "div", "b", "code"}
    return reader.text


def machine(path: Path) -> Machine:
    return read_machine(read_capture(str(path)))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_every_captured_machine_and_its_plan_are_shown(path: Path) -> None:
    here = machine(path)
    text = read(machine_html(here))
    assert "Budget" in text
    assert "None" not in text
    plan = make_plan(here, Request())
    text = read(plan_html(plan))
    for decision in plan.decisions:
        assert decision.says in text
        assert decision.reason in text


def test_every_step_of_a_setup_is_shown() -> None:
    plan = make_plan(machine(MACHINES[0]), Request())
    steps = tuple(
        SetupStep(policy=decision.policy, says=decision.says, effect=effect, why=EVIL)
        for decision, effect in zip(plan.decisions, [*Effect] * 4, strict=False)
    )
    setup = SetupResult(plan=plan, steps=steps, launched=True, restart=EVIL, warnings=(EVIL,))
    text = read(setup_html(setup))
    assert text.count(EVIL) == len(steps) + 2
    for effect in Effect:
        assert str(effect) in text
    assert "started by cputrain launch" in text


def test_a_search_is_shown_with_every_trial() -> None:
    trials = (
        Trial(stage="python", settings=None, seconds=0.2, speedup=None, says=EVIL, good=True),
        Trial(stage="alone", settings={"threads": "1"}, seconds=None, speedup=None, says="no",
              good=False),
    )  # fmt: skip
    found = SearchResult(
        settings={}, against_rules=None, against_python=1.5, reason=f"nothing {EVIL}",
        reduced=False, loss_difference=None, later=7.0, pays_after=40,
        untried=("compile on",), trials=trials, seconds=1.0,
    )  # fmt: skip
    text = read(search_result_html(found))
    assert text.count(EVIL) == 2
    assert "200 ms" in text
    assert "rejected: no" in text
    assert "It starts 7 s later, which pays off after 40 steps." in text
    assert "compile on" in text
