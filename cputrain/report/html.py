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
    from cputrain.plan import Plan
    from cputrain.tune.result import SearchResult, Trial

LINE = "border:0;border-bottom:1px solid rgba(128,128,128,.35)"
CELL = "text-align:left;vertical-align:top;padding:.2em .8em .2em 0;background:none"
FAINT = "opacity:.6"


def plan_html(plan: Plan) -> str:
    """Return the plan's decisions with their reasons, and its warnings."""
    rows = [
        (decision.policy.replace("_", " "), decision.says, str(decision.origin), decision.reason)
        for decision in plan.decisions
    ]
    return table_html(
        ("decision", "value", "by", "why"), rows, title=f"Plan for {plan.machine}"
    ) + warnings_html(plan.warnings)


def machine_html(machine: Machine) -> str:
    """Return the machine's facts, limits and budget."""
    parts = []
    for title, pairs in sections(machine, None):
        rows = [(name, str(value)) for name, value in pairs if value is not None]
        parts += [table_html((), rows, title=title)] if rows else []
    channels = machine.memory.channels
    return "".join(parts) + warnings_html(() if channels is None else channels.warnings)


def search_result_html(result: SearchResult) -> str:
    """Return all trials of a search and its result."""
    return trials_html(result.trials) + "".join(map(note_html, result_sentences(result)))


def trials_html(trials: Sequence[Trial], running: str = "") -> str:
    """Return a table of completed trials, and a note on the running one."""
    faint = [not trial.good for trial in trials]
    return table_html(HEAD, map(cells, trials), faint=faint) + (
        note_html(running) if running else ""
    )


def note_html(text: str) -> str:
    """Return a paragraph with escaped text."""
    return f'<div style="margin:.4em 0">{escape(text)}</div>'


def warnings_html(warnings: Iterable[str]) -> str:
    """Return a paragraph for each warning."""
    return "".join(
        f'<div style="margin:.4em 0"><b>warning</b> {escape(warning)}</div>' for warning in warnings
    )


def table_html(
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
