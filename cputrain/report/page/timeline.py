"""Timeline of a step: its phases, and each operator in order."""

from __future__ import annotations

from cputrain.report.figures import milliseconds, part_of, shapes
from cputrain.report.page.marks import element, part, text, tip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose import Diagnosis
    from cputrain.diagnose.step_profile import StepProfile

NARROW = 0.001
"""Fraction of the timeline below which consecutive operators share a mark."""

MARKS = 5
"""Number of ticks on the axis."""


def parts(seen: StepProfile) -> str:
    """Return the phases of an uninstrumented step, with lengths proportional to time."""
    each = [
        ("loader", "wait", seen.wait),
        ("forward", "forward", seen.forward),
        ("backward", "backward", seen.backward),
        ("optimizer", "optimizer", seen.optimizer),
    ]
    told = [one for one in each if one[2] > 0]
    bars = [
        element(
            "span", class_=f"bar {kind}", style=f"flex-grow:{seconds / seen.step:.5f}",
            data_tip=tip(name, f"{milliseconds(seconds)}, {part_of(seconds, seen.step)}"),
            tabindex=0,
        )
        for name, kind, seconds in told
    ]  # fmt: skip
    names = [
        element(
            "li", element("i", class_=kind), text("span", name),
            text("b", milliseconds(seconds)), text("span", part_of(seconds, seen.step)),
        )
        for name, kind, seconds in told
    ]  # fmt: skip
    return element("div", *bars, class_="bars") + element("ul", *names, class_="legend")


def line(found: Diagnosis) -> str:
    """Return the timeline of the instrumented step; empty if there is none."""
    seen = found.seen
    if not seen.line:
        return ""
    end = max(begin + seconds for _, begin, seconds in seen.line)
    if end <= 0:
        return ""
    marks = list(_marks(seen, end))
    ticks = [
        text("span", milliseconds(end * at) or "0", style=f"left:{part(at)}")
        for at in (number / (MARKS - 1) for number in range(MARKS))
    ]  # fmt: skip
    return (
        text("p", f"One step with each of its {len(seen.line)} operators timed, which takes "
             "longer; gaps are Python's:")
        + element("svg", *marks, class_="line", role="group", aria_label="operators of a step")
        + element("div", *ticks, class_="ticks")
    )  # fmt: skip


def _marks(seen: StepProfile, end: float) -> Iterator[str]:
    """Yield a mark for each operator, or for several that are too short to be visible."""
    together: list[tuple[int, float, float]] = []
    for one in seen.line:
        if together and not _belongs(seen, together, one, end):
            yield _mark(seen, together, end)
            together = []
        together.append(one)
    yield _mark(seen, together, end)


def _belongs(
    seen: StepProfile,
    together: list[tuple[int, float, float]],
    one: tuple[int, float, float],
    end: float,
) -> bool:
    first = together[0]
    same = seen.operators[first[0]].phase == seen.operators[one[0]].phase
    return same and one[1] + one[2] - first[1] < NARROW * end


def _mark(seen: StepProfile, together: list[tuple[int, float, float]], end: float) -> str:
    which, begin, _ = together[0]
    until = max(start + seconds for _, start, seconds in together)
    took = sum(seconds for _, _, seconds in together)
    one = seen.operators[which]
    if len(together) == 1:
        said = tip(f"{one.name} · {one.phase}", shapes(one.shapes), one.layer, milliseconds(took))
    else:
        names = ", ".join({seen.operators[each].name: 0 for each, _, _ in together})
        said = tip(f"{len(together)} operators · {one.phase}", names, milliseconds(took))
    return element(
        "rect", x=part(begin / end), y="0%", width=part((until - begin) / end), height="100%",
        class_=one.phase, data_tip=said,
    )  # fmt: skip
