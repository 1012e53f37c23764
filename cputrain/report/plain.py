"""Plain text of plans, machines and searches, for IPython and notebooks."""

from __future__ import annotations

import io

from cputrain.counting import counted
from cputrain.report.machines import show_machine
from cputrain.report.plans import show_plan
from cputrain.report.terminal import console, show_table
from cputrain.report.trials import HEAD, cells
from cputrain.tune.result import settings_text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.result import SearchResult

NOTABLE = 2.0
"""Startup delay in seconds above which the result of a search mentions it."""


def plan_text(plan: Plan) -> str:
    """Return the plan's decisions with their reasons."""
    out = io.StringIO()
    show_plan(console(out, plain=True), plan)
    return _trimmed(out)


def machine_text(machine: Machine) -> str:
    """Return the machine's facts, limits and budget."""
    out = io.StringIO()
    show_machine(console(out, plain=True), machine, None)
    return _trimmed(out)


def search_result_text(result: SearchResult) -> str:
    """Return all trials of a search and its result."""
    out = io.StringIO()
    show_table(console(out, plain=True), HEAD, map(cells, result.trials))
    return "\n".join([_trimmed(out), *result_sentences(result)])


def result_sentences(result: SearchResult) -> list[str]:
    """Return the result of a search in sentences."""
    sentences = [f"{result.reason[0].upper()}{result.reason[1:]}."]
    if result.against_python is not None:
        sentences.append(f"Against plain python: {result.against_python:.2f} times as fast.")
    if result.later is not None and result.later > NOTABLE:
        sentences.append(
            f"It starts {result.later:.0f} s later, which pays off after "
            f"{counted(result.pays_after or 0, 'step')}."
        )
    if result.untried:
        sentences.append(
            f"Not tried for want of time: {', '.join(result.untried)} (--budget gives more)."
        )
    unconfirmed = [text for text in result.unconfirmed if text != settings_text(result.settings)]
    if unconfirmed:
        texts = ", ".join(text.replace(", ", " with ") for text in unconfirmed)
        sentences.append(f"Not confirmed for want of time: {texts}.")
    return sentences


def _trimmed(out: io.StringIO) -> str:
    """Return the text without blank lines at its ends, and without trailing spaces."""
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())
