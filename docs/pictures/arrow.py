"""The four stages of the code, from the facts of a machine to a measurement."""

from __future__ import annotations

from docs.pictures.drawing import COLORS, FAINT, TINTS, Drawing

STAGES = (
    ("Machine", "facts", "cores, caches, nodes,", "limits of this process", "cputrain/machine"),
    ("Plan", "decisions", "each with its reason;", "saved and replayed", "cputrain/plan"),
    ("Run", "changes", "the script's process,", "changed as planned", "launch, runtime"),
    ("Measurement", "", "confirms a decision,", "or overturns it", "bench, tune, diagnose"),
)
"""Title, kind of value, two lines, and the folders of each stage."""


def picture() -> str:
    """Return the chart."""
    drawing = Drawing(760, 190, "Machine, Plan, Run, Measurement; a measurement changes the plan")
    for number, (title, kind, first, second, folder) in enumerate(STAGES):
        x = 20 + number * 185
        drawing.box(x, 40, 165, 98, fill=TINTS[number], stroke=COLORS[number])
        drawing.text(x + 12, 62, title, bold=True, size=15)
        drawing.text(x + 153, 62, kind, anchor="end", size=11, color=FAINT)
        drawing.text(x + 12, 84, first, size=12)
        drawing.text(x + 12, 101, second, size=12)
        drawing.text(x + 12, 126, folder, size=11, mono=True)
        if number:
            drawing.arrow(x - 20, 89, x - 1, 89)
    x = 20 + 3 * 185 + 82
    drawing.line(x, 138, x, 160, color=FAINT, width=1.6)
    drawing.line(x, 160, 287, 160, color=FAINT, width=1.6)
    drawing.arrow(287, 160, 287, 139)
    drawing.text(470, 178, "a measurement takes precedence", anchor="middle", size=11, color=FAINT)
    return drawing.svg()
