"""Roofline chart: operators by arithmetic intensity and FLOP/s.

A sloped line is the bandwidth of a memory level, a horizontal line the peak FLOP/s of a dtype. An
operator lies below both; the nearest line is its bound.
"""

from __future__ import annotations

from math import floor, log10

from cputrain.diagnose.rates import share_of_roof
from cputrain.record import Record
from cputrain.report.figures import LEVELS, milliseconds, part_of, rate, shapes
from cputrain.report.page.marks import element, part, text, tip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.step_profile import OperatorTime

LEAST = 0.002
"""Fraction of step time above which an operator is drawn."""

SMALLEST, LARGEST = 3.0, 17.0
"""Radius of a mark for an operator of zero time and of a whole step."""

ROOM = 1.6
"""Margin between the marks and the edges, as a factor."""


class Mark(Record):
    """Calls of one operator with the same shapes, dtype and phase, summed over layers."""

    of: OperatorTime
    calls: float
    seconds: float
    operations: float
    moved: float
    layers: tuple[str, ...]

    least: float
    """Time of the calls at the roof in seconds."""

    bound: str
    """Bound of the calls: "computing" or a memory level."""

    @property
    def reached(self) -> float:
        """Reached fraction of the roof."""
        return min(1.0, self.least / self.seconds)

    @property
    def intensity(self) -> float:
        """Arithmetic intensity in FLOP per byte."""
        return self.operations / self.moved

    @property
    def speed(self) -> float:
        """Reached FLOP/s."""
        return self.operations / self.seconds


class Scale(Record):
    """Logarithmic axis."""

    least: float
    most: float

    def at(self, value: float) -> float:
        """Return the position of a value as a fraction of the axis."""
        return (log10(value) - log10(self.least)) / (log10(self.most) - log10(self.least))

    def ticks(self) -> Iterator[float]:
        """Yield the powers of ten on the axis."""
        power = floor(log10(self.least))
        while (value := 10.0**power) <= self.most:
            if value >= self.least:
                yield value
            power += 1


def roofline(found: Diagnosis) -> str:
    """Return the chart with legend and note."""
    seen, roof = found.seen, found.roof
    marks = [one for one in _marks(found) if one.seconds >= LEAST * seen.step]
    levels = [
        (name, roof.bandwidth(seen.threads, name)) for name in ("memory", "l3", "l2")
    ]  # fmt: skip
    peaks = [
        (name, roof.flops(name, seen.threads))
        for name in sorted(roof.flops_per_s, key=lambda one: -roof.flops(one, seen.threads))
    ]
    ridge = peaks[0][1] / levels[0][1]
    intensities = [one.intensity for one in marks]
    speeds = [one.speed for one in marks]
    across = Scale(
        least=min([0.1, *intensities]) / ROOM, most=max([4 * ridge, *intensities]) * ROOM
    )
    up = Scale(
        least=min([across.least * levels[0][1], *speeds]) / ROOM,
        most=max([peaks[0][1], *speeds]) * ROOM,
    )
    inside = [*_grid(across, up), *_roofs(across, up, levels, peaks)]
    for one in sorted(marks, key=lambda one: -one.seconds):
        inside.append(_drawn(one, found, across, up))
    chart = element("svg", *inside, class_="roofline", role="group", aria_label="roofline")
    drawn = sum(one.seconds for one in marks)
    return (
        element("div", chart, class_="chart")
        + text("p", "operations for each byte that is read or written", class_="axis")
        + element("ul", *map(_named, levels), class_="legend levels")
        + text(
            "p",
            f"Upwards: operations in a second. Larger marks take more of the step; the "
            f"{len(marks)} that are drawn take {part_of(drawn, seen.instrumented_step)} of it. An "
            "operator that only goes over its numbers counts as one operation for each."
            + (" The lines are rough." if roof.rough else ""),
            class_="note",
        )
    )


def _marks(found: Diagnosis) -> Iterator[Mark]:
    groups: dict[tuple[object, ...], list[OperatorTime]] = {}
    for one in found.seen.operators:
        key = (one.name, one.shapes, one.dtype, one.phase)
        groups.setdefault(key, []).append(one)
    roof, threads = found.roof, found.seen.threads
    for each in groups.values():
        seconds, moved = sum(one.seconds for one in each), sum(one.bytes for one in each)
        # elementwise operators without counted FLOPs count one operation per element
        operations = sum(
            min(
                one.flops or one.numbers,
                roof.highest_flops(one.compute_dtype, threads) * one.seconds,
            )
            for one in each
        )
        bounds = [roof.least_seconds(one, threads) for one in each]
        if seconds > 0 and moved > 0 and operations > 0:
            yield Mark(
                of=each[0], calls=sum(one.calls for one in each), seconds=seconds,
                operations=operations, moved=moved, layers=tuple({one.layer: 0 for one in each}),
                least=sum(least for least, _ in bounds), bound=max(bounds)[1],
            )  # fmt: skip


def _grid(across: Scale, up: Scale) -> Iterator[str]:
    for value in across.ticks():
        x = part(across.at(value))
        yield element("line", x1=x, x2=x, y1="0%", y2="100%", class_="grid")
        yield text("text", f"{value:g}", x=x, y="100%", dy=18, class_="tick middle")
    for value in up.ticks():
        y = part(1 - up.at(value))
        yield element("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid")
        yield text("text", rate(value, "FLOP/s"), x="0%", y=y, dx=-8, dy=4, class_="tick end")


def _roofs(
    across: Scale, up: Scale, levels: list[tuple[str, float]], peaks: list[tuple[str, float]]
) -> Iterator[str]:
    top = peaks[0][1]
    for name, bandwidth in levels:
        begin = max(across.least, up.least / bandwidth)
        end = min(across.most, top / bandwidth)
        x1, y1 = part(across.at(begin)), part(1 - up.at(begin * bandwidth))
        yield element(
            "line", x1=x1, y1=y1, x2=part(across.at(end)), y2=part(1 - up.at(end * bandwidth)),
            class_=f"roof {name}",
        )  # fmt: skip
    for number, (name, peak) in enumerate(peaks):
        y = part(1 - up.at(peak))
        first = max(across.least, peak / max(bandwidth for _, bandwidth in levels))
        yield element("line", x1=part(across.at(first)), y1=y, x2="100%", y2=y, class_="roof")
        yield text(
            "text", f"{name} {rate(peak, 'FLOP/s')}", x="100%", y=y, dx=-4,
            dy=-6 if number == 0 else 15, class_="roof-name end",
        )  # fmt: skip


def _named(level: tuple[str, float]) -> str:
    name, bandwidth = level
    stroke = element("line", x1="0", x2="100%", y1="50%", y2="50%", class_=f"roof {name}")
    said = "memory" if name == "memory" else name.upper()
    return element("li", element("svg", stroke), text("span", said),
                   text("b", rate(bandwidth, "B/s")))  # fmt: skip


def _drawn(one: Mark, found: Diagnosis, across: Scale, up: Scale) -> str:
    seen = found.seen
    share = min(1.0, one.seconds / seen.instrumented_step)
    where = ", ".join(one.layers[:3]) + (f" and {len(one.layers) - 3} more" * (len(one.layers) > 3))
    said = tip(
        f"{one.of.name} · {one.of.phase}",
        shapes(one.of.shapes),
        where,
        f"{one.calls:.0f} calls, {milliseconds(one.seconds)}, {share:.1%} of a step",
        f"{rate(one.speed, 'FLOP/s')}, {rate(one.moved / one.seconds, 'B/s')}",
        f"{share_of_roof(one.reached)} of what it is bound by: {LEVELS[one.bound]}",
    )
    return element(
        "circle", cx=part(across.at(one.intensity)), cy=part(1 - up.at(one.speed)),
        r=f"{SMALLEST + (LARGEST - SMALLEST) * min(1.0, share) ** 0.5:.1f}",
        class_=f"mark {one.of.phase}", data_tip=said, tabindex=0, role="img", aria_label=said,
    )  # fmt: skip
