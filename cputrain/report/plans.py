"""Table of a plan, and answers to `--why-not`."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.report.terminal import show_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.console import Console

    from cputrain.plan import Plan


def show_plan(out: Console, plan: Plan) -> None:
    """Print the plan's decisions in a table, and its warnings."""
    show_table(
        out,
        ("decision", "value", "by", "why"),
        (
            (
                decision.policy.replace("_", " "),
                decision.says,
                str(decision.origin),
                decision.reason,
            )
            for decision in plan.decisions
        ),
    )
    for warning in plan.warnings:
        out.print(f"[yellow]warning[/yellow] {warning}", soft_wrap=True)


def why_not(plan: Plan, name: str) -> str:
    """Return why a value was rejected or chosen.

    Raises:
        UsageError: No decision or rejected value has that name; the message lists those that exist.
    """
    wanted = name.lower().lstrip("-").replace("-", "_")
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
    if not answers:
        known = sorted(
            {name for decision in plan.decisions for name in (decision.policy, *decision.rejected)}
        )
        raise UsageError(
            "--why-not",
            f"must be one of {', '.join(known)}",
            found=repr(name),
            do="Name one of them.",
        )
    return "\n".join(answers)
