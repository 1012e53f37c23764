"""Timeline of a step: its phases, and each operator in order."""

from __future__ import annotations

from cputrain.report.figures import milliseconds, part_of, shapes
from cputrain.report.page.marks import element, percent, text, tip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.step_profile import StepProfile

MIN_WIDTH = 0.001
"""Fraction of the timeline below which consecutive operators share a mark."""

NUM_TICKS = 5
"""Number of ticks on the axis."""


def phase_bars(seen: StepProfile) -> str:
    """Return the phases of an undisturbed step as bars, with lengths proportional to time."""
    phases = [
        ("loader", "wait", seen.wait),
        ("forward", "forward", seen.forward),
        ("backward", "backward", seen.backward),
        ("optimizer", "optimizer", seen.optimizer),
    ]
    shown = [phase for phase in phases if phase[2] > 0]
    bars = [
        element(
            "span", class_=f"bar {kind}", style=f"flex-grow:{seconds / seen.step:.5f}",
            data_tip=tip(name, f"{milliseconds(seconds)}, {part_of(seconds, seen.step)}"),
            tabindex=0,
        )
        for name, kind, seconds in shown
    ]  # fmt: skip
    names = [
        element(
            "li", element("i", class_=kind), text("span", name),
            text("b", milliseconds(seconds)), text("span", part_of(seconds, seen.step)),
        )
        for name, kind, seconds in shown
    ]  # fmt: skip
    return element("div", *bars, class_="bars") + element("ul", *names, class_="legend")


def timeline(diagnosis: Diagnosis) -> str:
    """Return the timeline of a traced step; empty if there is none."""
    seen = diagnosis.seen
    if not seen.line:
        return ""
    end = max(begin + seconds for _, begin, seconds in seen.line)
    if end <= 0:
        return ""
    marks = list(_marks(seen, end))
    ticks = [
        text("span", milliseconds(end * position) or "0", style=f"left:{percent(position)}")
        for position in (index / (NUM_TICKS - 1) for index in range(NUM_TICKS))
    ]  # fmt: skip
    return (
        text("p", f"One step with each of its {len(seen.line)} operators timed, which takes "
             "longer; gaps are Python's time:")
        + element("svg", *marks, class_="line", role="group", aria_label="operators of a step")
        + element("div", *ticks, class_="ticks")
    )  # fmt: skip


def _marks(seen: StepProfile, end: float) -> Iterator[str]:
    """Yield a mark for each operator, or for several that are too short to be visible."""
    group: list[tuple[int, float, float]] = []
    for call in seen.line:
        if group and not _belongs(seen, group, call, end):
            yield _mark(seen, group, end)
            group = []
        group.append(call)
    yield _mark(seen, group, end)


def _belongs(
    seen: StepProfile,
    group: list[tuple[int, float, float]],
    call: tuple[int, float, float],
    end: float,
) -> bool:
    """Return whether a call has the phase of a group, and keeps it too short to be visible."""
    first = group[0]
    is_same_phase = seen.operators[first[0]].phase == seen.operators[call[0]].phase
    return is_same_phase and call[1] + call[2] - first[1] < MIN_WIDTH * end


def _mark(seen: StepProfile, group: list[tuple[int, float, float]], end: float) -> str:
    """Return the mark of one or several calls."""
    index, begin, _ = group[0]
    until = max(start + seconds for _, start, seconds in group)
    total_s = sum(seconds for _, _, seconds in group)
    operator = seen.operators[index]
    if len(group) == 1:
        label = tip(
            f"{operator.name} · {operator.phase}",
            shapes(operator.shapes),
            operator.layer,
            milliseconds(total_s),
        )
    else:
        names = ", ".join({seen.operators[member].name: 0 for member, _, _ in group})
        label = tip(f"{len(group)} operators · {operator.phase}", names, milliseconds(total_s))
    return element(
        "rect", x=percent(begin / end), y="0%", width=percent((until - begin) / end), height="100%",
        class_=operator.phase, data_tip=label,
    )  # fmt: skip
