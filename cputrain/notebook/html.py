"""HTML of the result of `cputrain.setup`."""

from __future__ import annotations

from html import escape

from cputrain.notebook.outcome import Effect
from cputrain.report.html import note_html, table_html, warnings_html

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.notebook.outcome import SetupResult

EFFECT_SYMBOLS = {
    Effect.APPLIED: "✓",
    Effect.ALREADY: "✓",
    Effect.PARTLY: "◐",
    Effect.NOT_APPLIED: "✗",
    Effect.NOTHING: "·",
}
"""Symbol in the first column of the table."""


def setup_html(setup: SetupResult) -> str:
    """Return the decisions of `cputrain.setup`, and whether each was applied."""
    rows, faint = [], []
    for step in setup.steps:
        reason = setup.plan.decision(step.policy).reason
        rows.append((f"{EFFECT_SYMBOLS[step.effect]} {step.effect}", step.name, step.says,
                     step.why or reason))  # fmt: skip
        faint.append(step.effect is Effect.NOTHING)
    parts = [table_html(("", "decision", "value", "why"), rows, faint=faint, title="cputrain")]
    if setup.launched:
        parts.append(note_html("This process was started by cputrain launch."))
    if setup.restart:
        parts.append(
            '<div style="margin:.4em 0">To apply the whole plan: '
            f"<code>{escape(setup.restart)}</code></div>"
        )
    return "".join(parts) + warnings_html(setup.warnings)
