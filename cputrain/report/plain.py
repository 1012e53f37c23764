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


def found_text(found: Found) -> str:
    """Return all trials of a search and its result."""
    out = io.StringIO()
    show_table(console(out, plain=True), HEAD, map(cells, found.trials))
    return "\n".join([_trimmed(out), *said_of(found)])


def said_of(found: Found) -> list[str]:
    """Return the result of a search in sentences."""
    said = [f"{found.reason[0].upper()}{found.reason[1:]}."]
    if found.against_python is not None:
        said.append(f"Against plain python: {found.against_python:.2f} times as fast.")
    if found.later is not None and found.later > NOTABLE:
        said.append(
            f"It starts {found.later:.0f} s later, which pays after {found.pays_after} steps."
        )
    if found.untried:
        said.append(
            f"Not tried for want of time: {', '.join(found.untried)} (--budget gives more)."
        )
    return said


def _trimmed(out: io.StringIO) -> str:
    """Return the text without blank lines at its ends, and without trailing spaces."""
    return "\n".join(line.rstrip() for line in out.getvalue().strip("\n").splitlines())
