"""An annotated roofline, with the operators of a sample diagnosis."""

from __future__ import annotations

from math import log10

from docs.pictures.drawing import COLORS, FAINT, INK, LINE, Drawing
from tests.diagnose.samples import ROOF

LEFT, TOP, WIDTH, HEIGHT = 80, 50, 620, 260
INTENSITY, FLOPS = (0.05, 500.0), (1e9, 1e12)


def picture() -> str:
    """Return the chart."""
    drawing = Drawing(
        760, 370, "A roofline: operators below the bandwidth and the peak of a machine"
    )
    drawing.text(20, 28, "How to read the roofline of a diagnosis", bold=True, size=15)
    drawing.box(LEFT, TOP, WIDTH, HEIGHT, fill="#fbfcfd", stroke=LINE)
    for intensity in (0.1, 1, 10, 100):
        drawing.line(_x(intensity), TOP, _x(intensity), TOP + HEIGHT, color=LINE)
        drawing.text(_x(intensity), TOP + HEIGHT + 16, f"{intensity:g}", anchor="middle", size=11)
    for flops, label in ((1e9, "1 G"), (1e10, "10 G"), (1e11, "100 G"), (1e12, "1 T")):
        drawing.line(LEFT, _y(flops), LEFT + WIDTH, _y(flops), color=LINE)
        drawing.text(LEFT - 6, _y(flops) + 4, label, anchor="end", size=11)
    drawing.text(
        LEFT + WIDTH / 2, TOP + HEIGHT + 36, "arithmetic intensity (FLOP/byte)", anchor="middle"
    )
    drawing.text(20, TOP - 6, "FLOP/s", size=12)
    peak = ROOF.flops_per_s["float32"]["4"]
    for number, level in enumerate(("memory", "l3", "l2")):
        bandwidth = ROOF.bandwidth_bytes_per_s[level]["4"]
        start, end = max(INTENSITY[0], FLOPS[0] / bandwidth), peak / bandwidth
        drawing.line(_x(start), _y(start * bandwidth), _x(end), _y(peak), color=COLORS[0],
                     width=2.2 - number * 0.5)  # fmt: skip
    ridge = peak / ROOF.bandwidth_bytes_per_s["memory"]["4"]
    drawing.line(_x(peak / ROOF.bandwidth_bytes_per_s["l2"]["4"]), _y(peak), LEFT + WIDTH, _y(peak),
                 color=COLORS[1], width=2.2)  # fmt: skip
    drawing.text(LEFT + WIDTH - 8, _y(peak) - 8, "peak of the arithmetic units", anchor="end",
                 size=12, color=COLORS[1])  # fmt: skip
    drawing.text(_x(0.062), _y(4.5e11), "bandwidth of L2, L3, memory", size=12, color=COLORS[0])
    for intensity, flops, label, dx, dy in (
        (0.12, 3.4e9, "add, mul: as fast as memory allows", 10, 16),
        (60, 3.1e11, "convolution: near the peak", -12, 5),
        (4, 1.2e10, "far below both lines: why?", 10, 4),
    ):
        drawing.circle(_x(intensity), _y(flops), 6, fill=COLORS[3])
        drawing.text(_x(intensity) + dx, _y(flops) + dy, label, size=12,
                     anchor="end" if dx < 0 else "start", color=INK)  # fmt: skip
    drawing.line(_x(ridge), _y(peak), _x(ridge), TOP + HEIGHT, color=FAINT, dashes="3 4")
    drawing.text(_x(ridge) + 6, TOP + HEIGHT - 30, "left: limited by memory;", size=11, color=FAINT)
    drawing.text(_x(ridge) + 6, TOP + HEIGHT - 15, "right: by arithmetic", size=11, color=FAINT)
    return drawing.svg()


def _x(intensity: float) -> float:
    low, high = map(log10, INTENSITY)
    return LEFT + (log10(intensity) - low) / (high - low) * WIDTH


def _y(flops: float) -> float:
    low, high = map(log10, FLOPS)
    return TOP + HEIGHT - (log10(flops) - low) / (high - low) * HEIGHT
