"""HTML for notebooks, without scripts, external resources, or fixed text and background colors.

A notebook's theme is light or dark and cannot be queried, so text inherits the theme's color and
less important text is translucent. Styles are inline, since a style sheet would apply to the
whole page.
"""

from __future__ import annotations

from html import escape

from cputrain.report.machines import sections
from cputrain.report.plain import result_sentences
from cputrain.report.trials import HEAD, cells

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cputrain.machine import Machine
    from cputrain.notebook.outcome import SetupResult
    from cputrain.plan import Plan
    from cputrain.tune.result import SearchResult, Trial

LINE = "border:0;border-bottom:1px solid rgba(128,128,128,.35)"
CELL = "text-align:left;vertical-align:top;padding:.2em .8em .2em 0;background:none"
FAINT = "opacity:.6"
EFFECT_SYMBOLS = {
    "applied": "✓",
    "already so": "✓",
    "in part": "◐",
    "not applied": "✗",
    "nothing to do": "·",
}


def plan_html(plan: Plan) -> str:
    """Return the plan's decisions with their reasons, and its warnings."""
    rows = [
        (decision.policy.replace("_", " "), decision.says, str(decision.origin), decision.reason)
        for decision in plan.decisions
    ]
    return _table(
        ("decision", "value", "by", "why"), rows, title=f"Plan for {plan.machine}"
    ) + _warnings(plan.warnings)


def machine_html(machine: Machine) -> str:
    """Return the machine's facts, limits and budget."""
    parts = []
    for title, pairs in sections(machine, None):
        rows = [(name, str(value)) for name, value in pairs if value is not None]
        parts += [_table((), rows, title=title)] if rows else []
    channels = machine.memory.channels
    return "".join(parts) + _warnings(() if channels is None else channels.warnings)


def setup_html(setup: SetupResult) -> str:
    """Return the decisions of `cputrain.setup`, and whether each was applied."""
    rows, faint = [], []
    for step in setup.steps:
        reason = setup.plan.decision(step.policy).reason
        rows.append((f"{EFFECT_SYMBOLS[step.effect]} {step.effect}", step.name, step.says,
                     step.why or reason))  # fmt: skip
        faint.append(step.effect == "nothing to do")
    parts = [_table(("", "decision", "value", "why"), rows, faint=faint, title="cputrain")]
    if setup.launched:
        parts.append(note_html("This process was started by cputrain launch."))
    if setup.restart:
        parts.append(
            '<div style="margin:.4em 0">To apply the whole plan: '
            f"<code>{escape(setup.restart)}</code></div>"
        )
    return "".join(parts) + _warnings(setup.warnings)


def search_result_html(result: SearchResult) -> str:
    """Return all trials of a search and its result."""
    return trials_html(result.trials) + "".join(map(note_html, result_sentences(result)))


def trials_html(trials: Sequence[Trial], running: str = "") -> str:
    """Return a table of completed trials, and a note on the running one."""
    faint = [not trial.good for trial in trials]
    return _table(HEAD, map(cells, trials), faint=faint) + (note_html(running) if running else "")


def note_html(text: str) -> str:
    """Return a paragraph with escaped text."""
    return f'<div style="margin:.4em 0">{escape(text)}</div>'


def _warnings(warnings: Iterable[str]) -> str:
    return "".join(
        f'<div style="margin:.4em 0"><b>warning</b> {escape(warning)}</div>' for warning in warnings
    )


def _table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    faint: Sequence[bool] = (),
    title: str = "",
) -> str:
    """Return a table; rows marked in `faint` are translucent."""
    parts = [f'<div style="margin:.6em 0 .2em"><b>{escape(title)}</b></div>'] if title else []
    parts.append('<table style="border-collapse:collapse;margin:0;width:auto">')
    if head:
        names = "".join(
            f'<th style="{CELL};{LINE};font-weight:600">{escape(name)}</th>' for name in head
        )
        parts.append(f'<thead><tr style="background:none">{names}</tr></thead>')
    parts.append("<tbody>")
    for index, row in enumerate(rows):
        style = f";{FAINT}" if index < len(faint) and faint[index] else ""
        row_cells = "".join(f'<td style="{CELL};border:0">{escape(cell)}</td>' for cell in row)
        parts.append(f'<tr style="background:none{style}">{row_cells}</tr>')
    parts.append("</tbody></table>")
    return "".join(parts)
