"""Timeline of a step: its phases, and each operator in order."""

from __future__ import annotations

from cputrain.record import Record
from cputrain.report.figures import milliseconds, shapes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.step_profile import StepProfile

    Call = tuple[int, float, float]
    """Index of the operator, begin and duration in seconds."""

MIN_WIDTH = 0.001
"""Fraction of the timeline below which consecutive operators share a mark."""


class TimelineMark(Record):
    """One operator of the step, or several that are too short to be visible."""

    begin: float
    """Begin, as a fraction of the timeline."""

    width: float
    """Duration, as a fraction of the timeline."""

    phase: str
    """Phase of the operators: "forward"."""

    lines: tuple[str, ...]
    """Lines of the tooltip."""


class Timeline(Record):
    """Operators of a traced step."""

    seconds: float
    """Duration of the step."""

    marks: tuple[TimelineMark, ...]
    """Marks in order."""


def phases(seen: StepProfile) -> list[tuple[str, str, float]]:
    """Return name, style class and seconds of each phase of an undisturbed step."""
    all_phases = [
        ("loader", "wait", seen.wait),
        ("forward", "forward", seen.forward),
        ("backward", "backward", seen.backward),
        ("optimizer", "optimizer", seen.optimizer),
    ]
    return [phase for phase in all_phases if phase[2] > 0]


def make_timeline(seen: StepProfile) -> Timeline | None:
    """Return the timeline of a traced step; None if there is none."""
    end = max((begin + seconds for _, begin, seconds in seen.line), default=0.0)
    if end <= 0:
        return None
    marks = tuple(_mark(seen, group, end) for group in _groups(seen, end))
    return Timeline(seconds=end, marks=marks)


def _groups(seen: StepProfile, end: float) -> Iterator[list[Call]]:
    """Yield calls in order; those of one phase that are too short to be visible together."""
    group: list[Call] = []
    for call in seen.line:
        if group and not (
            seen.operators[group[0][0]].phase == seen.operators[call[0]].phase
            and call[1] + call[2] - group[0][1] < MIN_WIDTH * end
        ):
            yield group
            group = []
        group.append(call)
    yield group


def _mark(seen: StepProfile, group: list[Call], end: float) -> TimelineMark:
    """Return the mark of one or several calls."""
    begin = group[0][1]
    until = max(start + seconds for _, start, seconds in group)
    total = milliseconds(sum(seconds for _, _, seconds in group))
    operator = seen.operators[group[0][0]]
    lines = (
        (f"{operator.name} · {operator.phase}", shapes(operator.shapes), operator.layer, total)
        if len(group) == 1
        else (
            f"{len(group)} operators · {operator.phase}",
            ", ".join({seen.operators[member].name: 0 for member, _, _ in group}),
            total,
        )
    )
    return TimelineMark(
        begin=begin / end, width=(until - begin) / end, phase=operator.phase, lines=lines
    )
