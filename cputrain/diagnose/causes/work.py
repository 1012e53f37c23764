"""Too little parallel work: a step is faster with fewer threads."""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.diagnose.finding import Confidence, make_finding

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.diagnose.finding import DiagnosedCase, Finding


MAX_OTHER_CPUS = 0.25
"""CPUs in use by other processes above which thread counts are not compared."""


def find(case: DiagnosedCase) -> Iterator[Finding]:
    """Yield a finding if the run with fewer threads had shorter steps."""
    seen, fewer = case.seen, case.fewer
    if fewer is None or fewer.step >= seen.step:
        return
    if seen.other_cpus > MAX_OTHER_CPUS and seen.threads <= case.machine.budget.physical_cores:
        return  # threads wait for a thread that another program preempted; the script is not slow
    unscaled = [times for times in _times_by_threads(case) if times[1] <= times[2]]
    slower_s = sum(all_s - fewer_s for _, fewer_s, all_s in unscaled)
    slowest = sorted(unscaled, key=lambda times: -times[2])[:3]
    names = ", ".join(dict.fromkeys(name for name, *_ in slowest))
    yield make_finding(
        case, seen.step - fewer.step,
        cause="work",
        title=f"{seen.threads} threads are too many: {_count(fewer.threads)} faster",
        evidence=(
            f"a step takes {seen.step * 1e3:.3g} ms with {seen.threads} threads, "
            f"{fewer.step * 1e3:.3g} ms with {fewer.threads}",
            f"operators that are not faster with more: {names or 'none of them alone'}"
            f" ({slower_s * 1e3:.3g} ms of a step)",
            *_region_overhead(case),
        ),
        remedy=f"cputrain launch --threads {fewer.threads}, a larger batch, or --replicas auto",
        settings={"threads": str(fewer.threads)},
        sure=Confidence.MEASURED,
    )  # fmt: skip


def _region_overhead(case: DiagnosedCase) -> Iterator[str]:
    """Yield a line on the overhead of a parallel region, if it was measured."""
    seconds = case.roof.team_seconds.get(str(case.seen.threads), 0.0)
    if seconds:
        num_calls = sum(operator.calls for operator in case.seen.operators)
        yield (
            f"starting and ending a parallel region of {counted(case.seen.threads, 'thread')} "
            f"takes {seconds * 1e6:.2g} µs, and a step has {num_calls:.0f} operators"
        )


def _count(num_threads: int) -> str:
    return "one is" if num_threads == 1 else f"{num_threads} are"


def _times_by_threads(case: DiagnosedCase) -> list[tuple[str, float, float]]:
    """Return name, and seconds with fewer and with all threads, of operators in both profiles."""
    assert case.fewer is not None
    fewer_s = {
        (operator.name, operator.shapes, operator.phase, operator.layer): operator.seconds
        for operator in case.fewer.operators
    }
    return [
        (operator.name, fewer_s[key], operator.seconds)
        for operator in case.seen.operators
        if (key := (operator.name, operator.shapes, operator.phase, operator.layer)) in fewer_s
    ]
