"""Roofline chart: operators by arithmetic intensity and FLOP/s.

A sloped line is the bandwidth of a memory level, a horizontal line the peak FLOP/s of a dtype. An
operator lies below both; the nearest line is its bound.
"""

from __future__ import annotations

from math import floor, log10

from cputrain.diagnose.rates import share_of_roof
from cputrain.record import Record
from cputrain.report.figures import LEVELS, milliseconds, part_of, rate, shapes
from cputrain.report.page.marks import element, percent, text, tip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.step_profile import OperatorTime

MIN_SHARE = 0.002
"""Fraction of step time above which an operator is drawn."""

MIN_RADIUS, MAX_RADIUS = 3.0, 17.0
"""Radius of a mark for an operator of zero time and of a whole step."""

MARGIN = 1.6
"""Margin between the marks and the edges, as a factor on the logarithmic axes."""


class Mark(Record):
    """Calls of one operator with the same shapes, dtype and phase, summed over layers."""

    operator: OperatorTime
    """Operator in the first of the layers."""

    calls: float
    """Number of calls in a step."""

    seconds: float
    """Time of the calls in seconds."""

    operations: float
    """FLOPs of the calls; elements, if FLOPs are not counted."""

    moved_bytes: float
    """Bytes that the calls read and write."""

    layers: tuple[str, ...]
    """Names of the layers that call the operator."""

    roof_s: float
    """Time of the calls at the roof in seconds."""

    bound: str
    """Bound of the calls: "computing" or a memory level."""

    @property
    def reached(self) -> float:
        """Return the reached fraction of the roof."""
        return min(1.0, self.roof_s / self.seconds)

    @property
    def intensity(self) -> float:
        """Return the arithmetic intensity in FLOPs per byte."""
        return self.operations / self.moved_bytes

    @property
    def flops_per_s(self) -> float:
        """Return the reached FLOP/s."""
        return self.operations / self.seconds


class Scale(Record):
    """Logarithmic axis."""

    lowest: float
    """Value at the start of the axis."""

    highest: float
    """Value at the end of the axis."""

    def position(self, value: float) -> float:
        """Return the position of a value as a fraction of the axis."""
        return (log10(value) - log10(self.lowest)) / (log10(self.highest) - log10(self.lowest))

    def ticks(self) -> Iterator[float]:
        """Yield the powers of ten on the axis."""
        power = floor(log10(self.lowest))
        while (value := 10.0**power) <= self.highest:
            if value >= self.lowest:
                yield value
            power += 1


def roofline(diagnosis: Diagnosis) -> str:
    """Return the chart with legend and note."""
    seen, roof = diagnosis.seen, diagnosis.roof
    marks = [mark for mark in _marks(diagnosis) if mark.seconds >= MIN_SHARE * seen.step]
    levels = [
        (name, roof.bandwidth(seen.threads, name)) for name in ("memory", "l3", "l2")
    ]  # fmt: skip
    peaks = [
        (name, roof.flops(name, seen.threads))
        for name in sorted(roof.flops_per_s, key=lambda dtype: -roof.flops(dtype, seen.threads))
    ]
    ridge = peaks[0][1] / levels[0][1]
    intensities = [mark.intensity for mark in marks]
    rates = [mark.flops_per_s for mark in marks]
    across = Scale(
        lowest=min([0.1, *intensities]) / MARGIN, highest=max([4 * ridge, *intensities]) * MARGIN
    )
    up = Scale(
        lowest=min([across.lowest * levels[0][1], *rates]) / MARGIN,
        highest=max([peaks[0][1], *rates]) * MARGIN,
    )
    inside = [*_grid(across, up), *_roofs(across, up, levels, peaks)]
    for mark in sorted(marks, key=lambda mark: -mark.seconds):
        inside.append(_circle(mark, diagnosis, across, up))
    chart = element("svg", *inside, class_="roofline", role="group", aria_label="roofline")
    drawn_s = sum(mark.seconds for mark in marks)
    return (
        element("div", chart, class_="chart")
        + text("p", "arithmetic intensity: FLOPs per byte read or written", class_="axis")
        + element("ul", *map(_legend_item, levels), class_="legend levels")
        + text(
            "p",
            f"Vertical axis: FLOP/s. Larger marks take more of the step; the {len(marks)} that are "
            f"drawn take {part_of(drawn_s, seen.instrumented_step)} of it. For operators without "
            "FLOPs, each element counts as one operation."
            + (" The lines are rough." if roof.rough else ""),
            class_="note",
        )
    )


def _marks(diagnosis: Diagnosis) -> Iterator[Mark]:
    """Yield a mark for all operators with the same name, shapes, dtype and phase."""
    groups: dict[tuple[object, ...], list[OperatorTime]] = {}
    for operator in diagnosis.seen.operators:
        key = (operator.name, operator.shapes, operator.dtype, operator.phase)
        groups.setdefault(key, []).append(operator)
    roof, threads = diagnosis.roof, diagnosis.seen.threads
    for group in groups.values():
        seconds = sum(operator.seconds for operator in group)
        moved_bytes = sum(operator.bytes for operator in group)
        # elementwise operators without counted FLOPs count one operation per element
        operations = sum(
            min(
                operator.flops or operator.numbers,
                roof.highest_flops(operator.compute_dtype, threads) * operator.seconds,
            )
            for operator in group
        )
        bounds = [roof.least_seconds(operator, threads) for operator in group]
        if seconds > 0 and moved_bytes > 0 and operations > 0:
            yield Mark(
                operator=group[0], calls=sum(operator.calls for operator in group),
                seconds=seconds, operations=operations, moved_bytes=moved_bytes,
                layers=tuple({operator.layer: 0 for operator in group}),
                roof_s=sum(roof_s for roof_s, _ in bounds), bound=max(bounds)[1],
            )  # fmt: skip


def _grid(across: Scale, up: Scale) -> Iterator[str]:
    """Yield grid lines and tick labels."""
    for value in across.ticks():
        x = percent(across.position(value))
        yield element("line", x1=x, x2=x, y1="0%", y2="100%", class_="grid")
        yield text("text", f"{value:g}", x=x, y="100%", dy=18, class_="tick middle")
    for value in up.ticks():
        y = percent(1 - up.position(value))
        yield element("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid")
        yield text("text", rate(value, "FLOP/s"), x="0%", y=y, dx=-8, dy=4, class_="tick end")


def _roofs(
    across: Scale, up: Scale, levels: list[tuple[str, float]], peaks: list[tuple[str, float]]
) -> Iterator[str]:
    """Yield the lines of memory levels and of the peak FLOP/s of dtypes."""
    top = peaks[0][1]
    for name, bandwidth in levels:
        begin = max(across.lowest, up.lowest / bandwidth)
        end = min(across.highest, top / bandwidth)
        x1, y1 = percent(across.position(begin)), percent(1 - up.position(begin * bandwidth))
        yield element(
            "line", x1=x1, y1=y1, x2=percent(across.position(end)),
            y2=percent(1 - up.position(end * bandwidth)), class_=f"roof {name}",
        )  # fmt: skip
    for index, (name, peak) in enumerate(peaks):
        y = percent(1 - up.position(peak))
        first = max(across.lowest, peak / max(bandwidth for _, bandwidth in levels))
        yield element(
            "line", x1=percent(across.position(first)), y1=y, x2="100%", y2=y, class_="roof"
        )
        yield text(
            "text", f"{name} {rate(peak, 'FLOP/s')}", x="100%", y=y, dx=-4,
            dy=-6 if index == 0 else 15, class_="roof-name end",
        )  # fmt: skip


def _legend_item(level: tuple[str, float]) -> str:
    """Return the legend of a memory level, with its bandwidth."""
    name, bandwidth = level
    stroke = element("line", x1="0", x2="100%", y1="50%", y2="50%", class_=f"roof {name}")
    label = "memory" if name == "memory" else name.upper()
    return element("li", element("svg", stroke), text("span", label),
                   text("b", rate(bandwidth, "B/s")))  # fmt: skip


def _circle(mark: Mark, diagnosis: Diagnosis, across: Scale, up: Scale) -> str:
    """Return the circle of a mark; its area is proportional to its time."""
    seen = diagnosis.seen
    share = min(1.0, mark.seconds / seen.instrumented_step)
    num_hidden = len(mark.layers) - 3
    layers = ", ".join(mark.layers[:3]) + (f" and {num_hidden} more" * (num_hidden > 0))
    label = tip(
        f"{mark.operator.name} · {mark.operator.phase}",
        shapes(mark.operator.shapes),
        layers,
        f"{mark.calls:.0f} calls, {milliseconds(mark.seconds)}, {share:.1%} of a step",
        f"{rate(mark.flops_per_s, 'FLOP/s')}, {rate(mark.moved_bytes / mark.seconds, 'B/s')}",
        f"{share_of_roof(mark.reached)} of its bound: {LEVELS[mark.bound]}",
    )
    return element(
        "circle", cx=percent(across.position(mark.intensity)),
        cy=percent(1 - up.position(mark.flops_per_s)),
        r=f"{MIN_RADIUS + (MAX_RADIUS - MIN_RADIUS) * min(1.0, share) ** 0.5:.1f}",
        class_=f"mark {mark.operator.phase}", data_tip=label, tabindex=0, role="img",
        aria_label=label,
    )  # fmt: skip
