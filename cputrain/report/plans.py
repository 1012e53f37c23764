"""A plan as people read it: what was decided, why, and why not otherwise."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.report.terminal import show_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rich.console import Console

    from cputrain.plan import Plan


def show_plan(out: Console, plan: Plan) -> None:
    """Every decision in a table, warnings under it."""
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
    """Why something was not chosen; an error that lists what can be asked about."""
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
            f"knows of {', '.join(known)}",
            found=repr(name),
            do="Ask about one of them.",
        )
    return "\n".join(answers)
