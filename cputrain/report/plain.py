"""Plain text of plans, machines and searches, for IPython and notebooks."""

from __future__ import annotations

import io

from cputrain.report.machines import show_machine
from cputrain.report.plans import show_plan
from cputrain.report.terminal import console, show_table
from cputrain.report.trials import HEAD, cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine
    from cputrain.plan import Plan
    from cputrain.tune.found import Found

MIN_DELAY_S = 2.0
"""Startup delay in seconds above which the summary of a search mentions it."""


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


def search_text(result: Found) -> str:
    """Return all trials of a search and its result."""
    out = io.StringIO()
    show_table(console(out, plain=True), HEAD, map(cells, result.trials))
    return "\n".join([_trimmed(out), *search_summary(result)])


def search_summary(result: Found) -> list[str]:
    """Return the result of a search in sentences."""
    sentences = [f"{result.reason[0].upper()}{result.reason[1:]}."]
    if result.against_python is not None:
        sentences.append(f"It is {result.against_python:.2f} times as fast as plain python.")
    if result.later is not None and result.later > MIN_DELAY_S:
        sentences.append(
            f"It starts {result.later:.0f} s later, which pays after {result.pays_after} steps."
        )
    if result.untried:
        sentences.append(
            f"Not tried for lack of time: {', '.join(result.untried)} (--budget allows more)."
        )
    return sentences


def _trimmed(out: io.StringIO) -> str:
    """Return the text without blank lines at its ends, and without trailing spaces."""
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())
