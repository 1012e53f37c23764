"""A batch on its way through Split: shards, replicas, the loss, and gradients."""

from __future__ import annotations

from docs.pictures.drawing import COLORS, FAINT, TINTS, Drawing

REPLICAS = 4


def picture() -> str:
    """Return the chart."""
    drawing = Drawing(760, 300, "A batch is divided among replicas; the loss sees the whole batch")
    drawing.text(20, 28, "One call of the model, four replicas", bold=True, size=15)
    drawing.box(20, 60, 60, 200, fill=TINTS[0], stroke=COLORS[0])
    drawing.text(50, 278, "batch", anchor="middle")
    drawing.line(330, 50, 330, 262, color=COLORS[3], dashes="4 4")
    for number in range(REPLICAS):
        y = 60 + number * 50
        drawing.line(20, y, 80, y, color=COLORS[0])
        drawing.arrow(80, y + 25, 138, y + 25)
        drawing.box(140, y + 5, 62, 40, fill=TINTS[0], stroke=COLORS[0])
        drawing.text(171, y + 30, "shard", anchor="middle", size=12)
        drawing.arrow(202, y + 25, 248, y + 25)
        drawing.box(250, y + 3, 160, 44, fill=TINTS[2], stroke=COLORS[2])
        drawing.text(330, y + 21, f"replica {number}", anchor="middle", size=12, bold=True)
        drawing.text(330, y + 38, "own thread team and L3", anchor="middle", size=11)
        drawing.arrow(410, y + 25, 468, y + 25)
    drawing.text(330, 278, "share the parameters in memory", anchor="middle", size=12)
    drawing.text(420, 48, "barriers: batch norm of the whole batch", size=11, color=COLORS[3])
    drawing.box(470, 60, 60, 200, fill=TINTS[0], stroke=COLORS[0])
    drawing.text(500, 278, "outputs", anchor="middle")
    drawing.arrow(530, 160, 578, 160)
    drawing.box(580, 130, 160, 60, fill=TINTS[1], stroke=COLORS[1])
    drawing.text(660, 156, "loss of the script", anchor="middle", size=12, bold=True)
    drawing.text(660, 175, "of the whole batch", anchor="middle", size=11)
    drawing.line(660, 190, 660, 240, color=FAINT, width=1.6)
    drawing.arrow(660, 240, 534, 240)
    drawing.text(
        660, 258, "backward: each replica its shard;", anchor="middle", size=11, color=FAINT
    )
    drawing.text(660, 274, "gradients are added in order", anchor="middle", size=11, color=FAINT)
    return drawing.svg()
