"""Work: too little of it for so many threads."""

from __future__ import annotations

from cputrain.diagnose.finding import Sure, found

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import Case, Finding


RESTLESS = 0.25
"""CPUs that are at work for others, from which on nothing is said of threads."""


def find(case: Case) -> Iterator[Finding]:
    """What fewer threads save, where they were tried."""
    seen, fewer = case.seen, case.fewer
    if fewer is None or fewer.step >= seen.step:
        return
    if seen.others > RESTLESS and seen.threads <= case.machine.budget.physical_cores:
        return  # threads wait for one that another program has stopped: that is not the script's
    same = [one for one in _pairs(case) if one[1] <= one[2]]
    slower = sum(many - few for _, few, many in same)
    names = ", ".join(dict.fromkeys(name for name, *_ in sorted(same, key=lambda one: -one[2])[:3]))
    yield found(
        case, seen.step - fewer.step,
        cause="work",
        title=f"{seen.threads} threads are too many: {_threads(fewer.threads)} faster",
        evidence=(
            f"a step takes {seen.step * 1e3:.3g} ms with {seen.threads} threads, "
            f"{fewer.step * 1e3:.3g} ms with {fewer.threads}",
            f"operators that are not faster with more: {names or 'none of them alone'}"
            f" ({slower * 1e3:.3g} ms of a step)",
            *_teams(case),
        ),
        remedy=f"cputrain launch --threads {fewer.threads}, a larger batch, or --replicas auto",
        settings={"threads": str(fewer.threads)},
        sure=Sure.MEASURED,
    )  # fmt: skip


def _teams(case: Case) -> Iterator[str]:
    """What it costs to have a team of threads begin and end, where that was measured."""
    seconds = case.roof.team_seconds.get(str(case.seen.threads), 0.0)
    if seconds:
        calls = sum(one.calls for one in case.seen.operators)
        yield (
            f"a team of {case.seen.threads} takes {seconds * 1e6:.2g} µs to begin and end, and a "
            f"step has {calls:.0f} operators"
        )


def _threads(count: int) -> str:
    return "one is" if count == 1 else f"{count} are"


def _pairs(case: Case) -> list[tuple[str, float, float]]:
    """Operators that both runs had: their seconds with fewer threads, and with all."""
    assert case.fewer is not None
    few = {
        (one.name, one.shapes, one.phase, one.layer): one.seconds for one in case.fewer.operators
    }
    return [
        (one.name, few[key], one.seconds)
        for one in case.seen.operators
        if (key := (one.name, one.shapes, one.phase, one.layer)) in few
    ]
