"""Table of a plan, and answers to `--why-not`."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.report.terminal import show_table
from cputrain.settings.core.decision import Change, Origin
from cputrain.settings.core.registry import SETTINGS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rich.console import Console

    from cputrain.plan import Plan
    from cputrain.settings.core.decision import Decision

COLUMNS = ("value", "by", "why")
"""Columns of a plan's table, after that of the settings."""


def show_plan(out: Console, plan: Plan, *, full: bool = True) -> None:
    """Print what a plan changes in a table, then what was not measured, and the warnings.

    Args:
        out: Console to print on.
        plan: The plan.
        full: Whether to print the decisions that change nothing, too.
    """
    changes = [decision for decision in plan.decisions if _is_change(decision)]
    others = [decision for decision in plan.decisions if not _is_change(decision)]
    show_table(out, ("what changes", *COLUMNS), map(_row, changes))
    if full and others:
        show_table(out, ("what does not", *COLUMNS), map(_row, others))
    elif others:
        out.print(f"--all shows {len(others)} more, which change nothing.")
    unmeasured = [
        decision.policy.replace("_", " ")
        for decision in plan.decisions
        if decision.origin is Origin.RULE and SETTINGS[decision.policy].trial_order
    ]
    if unmeasured:
        out.print(f"Not measured for this script: {', '.join(unmeasured)}. cputrain tune does it.")
    for warning in plan.warnings:
        out.print(f"[yellow]warning[/yellow] {warning}", soft_wrap=True)


def _is_change(decision: Decision[Any]) -> bool:
    """Return whether a decision changes anything, or is the user's."""
    return decision.change is not Change.NONE or decision.origin is not Origin.RULE


def _row(decision: Decision[Any]) -> tuple[str, str, str, str]:
    name = decision.policy.replace("_", " ")
    is_exact = decision.change in (Change.NONE, Change.EXACT)
    mark = "" if is_exact else "; changes results"
    return name, decision.says, str(decision.origin), f"{decision.reason}{mark}"


def why_not(plan: Plan, name: str) -> str:
    """Return why a value was rejected or chosen.

    Raises:
        UsageError: No decision or rejected value has that name; the message lists those that exist.
    """
    wanted = name.lower().lstrip("-").replace("-", "_").replace(" ", "_")
    answers = []
    for decision in plan.decisions:
        for rejected, reason in decision.rejected.items():
            if wanted in (rejected.lower(), f"{decision.policy}={rejected}".lower()):
                answers.append(
                    f"{decision.policy.replace('_', ' ')}: {decision.says}, not {rejected}: "
                    f"{reason}."
                )
        if wanted == decision.policy or wanted == str(decision.value).lower():
            answers.append(
                f"{decision.policy.replace('_', ' ')}: {decision.says} was chosen "
                f"({decision.origin}): {decision.reason}."
            )
    if not answers and wanted.isdecimal():
        threads = plan.decision("threads")
        answers.append(
            f"threads: {threads.says}, not {wanted}: {threads.reason}; --threads {wanted} does it."
        )
    if not answers:
        settings = ", ".join(decision.policy for decision in plan.decisions)
        values = ", ".join(
            dict.fromkeys(
                value
                for decision in plan.decisions
                for value in decision.rejected
                if value not in ("on", "off", "more", "others", "always", "short")
            )
        )
        raise UsageError(
            "--why-not",
            f"must be a setting ({settings}) or a value that was not chosen ({values})",
            found=repr(name),
            do="Name one of them.",
        )
    return "\n".join(answers)
