"""Roofline chart: operators by arithmetic intensity and FLOP/s.

A sloped line is the bandwidth of a memory level, a horizontal line the peak FLOP/s of a dtype. An
operator lies below both; the nearest line is its bound.
"""

from __future__ import annotations

from math import floor, log10

from cputrain.counting import counted
from cputrain.diagnose.rates import share_of_roof
from cputrain.record import Record
from cputrain.report.figures import LEVELS, milliseconds, rate, shapes

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


class MemoryRoof(Record):
    """Line of a memory level; positions are fractions of the chart, from its top left."""

    name: str
    """Name of the level: "memory", "l3" or "l2"."""

    bandwidth: float
    """Bandwidth in bytes per second."""

    x1: float
    y1: float
    x2: float
    y2: float


class ComputeRoof(Record):
    """Line of a dtype's peak FLOP/s."""

    name: str
    """Name of the dtype."""

    flops_per_s: float
    """Peak FLOP/s."""

    x: float
    """Begin of the line, as a fraction of the chart."""

    y: float
    """Position of the line from the top, as a fraction of the chart."""


class Circle(Record):
    """Circle of a mark; its area is proportional to its time."""

    x: float
    y: float
    radius: float
    phase: str

    lines: tuple[str, ...]
    """Lines of the tooltip."""


class Roofline(Record):
    """Chart of operators below the machine's roofs."""

    x_ticks: tuple[tuple[float, float], ...]
    """Value and position of each tick of the arithmetic intensity."""

    y_ticks: tuple[tuple[float, float], ...]
    """Value and position of each tick of the FLOP/s."""

    levels: tuple[MemoryRoof, ...]
    """Lines of memory levels."""

    peaks: tuple[ComputeRoof, ...]
    """Lines of dtypes, the highest first."""

    circles: tuple[Circle, ...]
    """Operators, the largest first."""

    drawn_s: float
    """Time of the drawn operators in seconds."""


def make_roofline(diagnosis: Diagnosis) -> Roofline:
    """Return the chart of a diagnosis."""
    seen, roof = diagnosis.seen, diagnosis.roof
    marks = [mark for mark in _marks(diagnosis) if mark.seconds >= MIN_SHARE * seen.step]
    levels = {name: roof.bandwidth(seen.threads, name) for name in ("memory", "l3", "l2")}
    peaks = {name: roof.flops(name, seen.threads) for name in roof.flops_per_s}
    top = max(peaks.values())
    across = Scale(
        lowest=min([0.1, *(mark.intensity for mark in marks)]) / MARGIN,
        highest=max([4 * top / levels["memory"], *(mark.intensity for mark in marks)]) * MARGIN,
    )
    rates = [mark.flops_per_s for mark in marks]
    up = Scale(
        lowest=min([across.lowest * levels["memory"], *rates]) / MARGIN,
        highest=max([top, *rates]) * MARGIN,
    )

    def memory_roof(name: str, bandwidth: float) -> MemoryRoof:
        begin = max(across.lowest, up.lowest / bandwidth)
        end = min(across.highest, top / bandwidth)
        return MemoryRoof(
            name=name, bandwidth=bandwidth,
            x1=across.position(begin), y1=1 - up.position(begin * bandwidth),
            x2=across.position(end), y2=1 - up.position(end * bandwidth),
        )  # fmt: skip

    def compute_roof(name: str, peak: float) -> ComputeRoof:
        first = max(across.lowest, peak / max(levels.values()))
        return ComputeRoof(
            name=name, flops_per_s=peak, x=across.position(first), y=1 - up.position(peak)
        )

    return Roofline(
        x_ticks=tuple((value, across.position(value)) for value in across.ticks()),
        y_ticks=tuple((value, 1 - up.position(value)) for value in up.ticks()),
        levels=tuple(memory_roof(*level) for level in levels.items()),
        peaks=tuple(
            compute_roof(*peak) for peak in sorted(sorted(peaks.items()), key=lambda peak: -peak[1])
        ),
        circles=tuple(
            _circle(mark, seen.instrumented_step, across, up)
            for mark in sorted(marks, key=lambda mark: -mark.seconds)
        ),
        drawn_s=sum(mark.seconds for mark in marks),
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


def _circle(mark: Mark, step_s: float, across: Scale, up: Scale) -> Circle:
    """Return the circle of a mark in a step of `step_s` seconds."""
    share = min(1.0, mark.seconds / step_s)
    num_hidden = len(mark.layers) - 3
    return Circle(
        x=across.position(mark.intensity),
        y=1 - up.position(mark.flops_per_s),
        radius=MIN_RADIUS + (MAX_RADIUS - MIN_RADIUS) * share**0.5,
        phase=mark.operator.phase,
        lines=(
            f"{mark.operator.name} · {mark.operator.phase}",
            shapes(mark.operator.shapes),
            ", ".join(mark.layers[:3]) + (f" and {num_hidden} more" * (num_hidden > 0)),
            f"{counted(round(mark.calls), 'call')}, {milliseconds(mark.seconds)}, "
            f"{share:.1%} of a step",
            f"{rate(mark.flops_per_s, 'FLOP/s')}, {rate(mark.moved_bytes / mark.seconds, 'B/s')}",
            f"{share_of_roof(mark.reached)} of its bound: {LEVELS[mark.bound]}",
        ),
    )
