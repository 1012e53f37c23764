"""Ranks on a machine with several NUMA nodes, as cputrain plans them for a captured machine."""

from __future__ import annotations

from pathlib import Path

from cputrain.machine import Rank, format_list, read_machine
from cputrain.machine.capture import read_capture
from cputrain.plan import Request, make_plan
from docs.pictures.drawing import COLORS, FAINT, TINTS, Drawing

CAPTURE = Path(__file__).parents[2] / "tests/machines/x86_64-epyc_7451.json"


def picture() -> str:
    """Return the chart."""
    machine = read_machine(read_capture(str(CAPTURE)))
    nodes = machine.nodes
    drawing = Drawing(760, 300, f"One rank per NUMA node, on {machine.model_name}")
    drawing.text(20, 28, "cputrain launch --nproc-per-node numa train.py", mono=True, bold=True)
    drawing.text(20, 48, f"planned for {machine.model_name}", size=11, color=FAINT)
    width = 720 / len(nodes)
    for number, node in enumerate(nodes):
        rank = Rank(launcher="torchrun", index=number, count=len(nodes), binds=False)
        plan = make_plan(machine, Request(rank=rank))
        cpus = plan.value("placement") or ()
        x = 20 + number * width
        drawing.box(x, 66, width - 8, 190, fill="#f5f8f9", stroke=FAINT)
        drawing.text(x + 8, 84, f"node {node.id}", size=11, bold=True)
        inside = [core for core in machine.topology.cores if set(core) <= set(node.cpus)]
        side = (width - 24) / 3
        for place, core in enumerate(inside):
            is_planned = set(core) & set(cpus)
            left, top = x + 8 + (place % 3) * side, 94 + (place // 3) * 22
            color = number % len(COLORS)
            drawing.box(left, top, side - 3, 18, radius=2, stroke=FAINT,
                        fill=TINTS[color] if is_planned else "#ffffff")  # fmt: skip
            drawing.text(left + (side - 3) / 2, top + 13, str(core[0]), anchor="middle", size=9)
        drawing.text(x + 8, 212, f"rank {number}", bold=True, size=12)
        drawing.text(x + 8, 229, f"{plan.value('threads')} threads", size=11)
        drawing.text(x + 8, 246, format_list(cpus), size=9)
    drawing.text(
        20, 280, "Each box is a core. A rank has the CPUs and the memory of its node.", size=12
    )
    return drawing.svg()
