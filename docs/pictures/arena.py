"""Blocks of the arena, written by workers and leased by the script's tensors."""

from __future__ import annotations

from docs.pictures.drawing import COLORS, FAINT, TINTS, Drawing

BLOCKS = (("batch 7", 1), ("batch 8", 1), ("free", None), ("batch 9", 0), ("free", None))
"""Label of each block, and whether the script (1) or a worker (0) holds it."""


def picture() -> str:
    """Return the chart."""
    drawing = Drawing(760, 220, "Workers write batches into blocks; the script's tensors are views")
    for number in range(2):
        y = 40 + number * 80
        drawing.box(20, y, 130, 56, fill=TINTS[1], stroke=COLORS[1])
        drawing.text(85, y + 25, f"worker {number}", anchor="middle", bold=True)
        drawing.text(85, y + 43, "stacks into a block", anchor="middle", size=11)
    drawing.box(230, 30, 270, 156, fill="#f5f8f9", stroke=FAINT)
    drawing.text(365, 204, "arena: one memfd, no file", anchor="middle", size=12)
    for number, (label, holder) in enumerate(BLOCKS):
        y = 38 + number * 29
        fill = "#ffffff" if holder is None else TINTS[0] if holder else TINTS[1]
        drawing.box(242, y, 246, 24, fill=fill, stroke=FAINT, radius=2)
        drawing.text(365, y + 17, label, anchor="middle", size=12)
    drawing.arrow(150, 148, 240, 137, color=COLORS[1])
    drawing.text(195, 122, "write", anchor="middle", size=11, color=COLORS[1])
    drawing.box(590, 68, 150, 76, fill=TINTS[0], stroke=COLORS[0])
    drawing.text(665, 98, "script", anchor="middle", bold=True)
    drawing.text(665, 118, "tensors are views", anchor="middle", size=11)
    for y in (50, 79):
        drawing.arrow(590, 100, 490, y, color=COLORS[0])
    drawing.text(540, 62, "lease", anchor="middle", size=11, color=COLORS[0])
    drawing.text(588, 164, "released with the last", anchor="middle", size=11, color=FAINT)
    drawing.text(588, 179, "tensor on a block", anchor="middle", size=11, color=FAINT)
    return drawing.svg()
