"""Bars of speed-ups, from the table of docs/benchmarks/launch.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from docs.pictures.drawing import COLORS, FAINT, INK, LINE, Drawing

PAGE = Path(__file__).parents[1] / "benchmarks/launch.md"

SPEED = re.compile(r"\*{0,2}([\d.]+)\*{0,2} \(([\d.]+) to ([\d.]+)\)")

LEFT, RIGHT, ROW = 352, 632, 30


class Bar(NamedTuple):
    """A row of the table."""

    workload: str
    machine: str
    median: float
    lowest: float
    highest: float


def bars() -> list[Bar]:
    """Return the first row of each workload, on the machine that it was measured on first."""
    table = PAGE.read_text().partition("## Speed-ups")[2].partition("\n## ")[0]
    found = []
    for line in table.splitlines():
        cells = [cell.strip().replace("`", "") for cell in line.strip("|").split("|")]
        speed = SPEED.search(line)
        if speed and cells[0]:
            figures = map(float, speed.groups())
            found.append(Bar(cells[0].partition(", whole")[0], cells[1], *figures))
    return sorted(found, key=lambda bar: -bar.median)


def picture() -> str:
    """Return the chart."""
    rows = bars()
    height = 70 + ROW * len(rows)
    title = "Speed-up of cputrain launch over plain python, by workload"
    drawing = Drawing(760, height, title)
    scale = (RIGHT - LEFT) / max(bar.highest for bar in rows)
    drawing.text(20, 30, "Speed-up over plain python", bold=True, size=15)
    for number in range(int(max(bar.highest for bar in rows)) + 1):
        x = LEFT + number * scale
        drawing.line(x, 44, x, height - 18, color=INK if number == 1 else LINE)
        drawing.text(x, 40, "python" if number == 1 else f"{number}×", anchor="middle", size=11,
                     color=FAINT)  # fmt: skip
    for number, bar in enumerate(rows):
        y = 62 + ROW * number
        drawing.text(20, y + 5, bar.workload)
        drawing.text(LEFT - 12, y + 5, bar.machine, anchor="end", size=11, color=FAINT)
        drawing.box(LEFT, y - 8, bar.median * scale, 16, fill=COLORS[0], stroke=COLORS[0], radius=2)
        low, high = LEFT + bar.lowest * scale, LEFT + bar.highest * scale
        drawing.line(low, y, high, y, color=COLORS[1], width=2)
        drawing.text(RIGHT + 14, y + 5, f"{bar.median:.2f}×", bold=True)
        drawing.text(RIGHT + 60, y + 5, f"{bar.lowest:.2f}–{bar.highest:.2f}", size=10, color=FAINT)
    return drawing.svg()
