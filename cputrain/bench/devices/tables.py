"""A comparison of devices as tables."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration
from cputrain.bench.tables import measured, page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.devices.comparison import (
        DeviceCaseResult,
        DeviceComparison,
        DeviceSide,
    )
    from cputrain.bench.tables import Table

COLUMNS = (
    "",
    "a step",
    "samples a second",
    "against the fastest alone",
    "share",
    "loss difference",
)


def case_table(case: DeviceCaseResult) -> Table:
    """The head and the rows of a case's table."""
    return measured(COLUMNS, [_row(side, case) for side in case.sides])


def as_markdown(comparison: DeviceComparison, *, machine_line: str) -> str:
    """The machine, a table for each case, and how to read them."""
    tables = [(case.title, case_table(case), below(case)) for case in comparison.cases]
    return page(machine_line, comparison.versions, tables, reading(comparison))


def below(case: DeviceCaseResult) -> str:
    """Why nothing was divided, if that was not a matter of speed."""
    return f"Not divided: {case.why_not}." if case.why_not else ""


def reading(comparison: DeviceComparison) -> str:
    """What the figures are."""
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds, interleaved"
    small = "Quick: too little is done to say anything about speed. " if comparison.quick else ""
    sums = ", ".join(f"{case.name} {case.of_the_sum:.2f}" for case in comparison.cases)
    return (
        f"{small}{rounds}. The model is on {comparison.devices[0]}; shares are those that Split "
        "has fitted, or the whole batch where one device alone is faster. Divided, of the samples "
        f"a second of all devices put together: {sums}."
    )


def _row(side: DeviceSide, case: DeviceCaseResult) -> tuple[str, ...]:
    speed = side.speedup
    ends = f" ({digits(speed.lowest)} to {digits(speed.highest)})" if len(side.seconds) > 1 else ""
    return (
        side.name,
        duration(side.median),
        digits(side.samples_per_second),
        f"{digits(speed.median)}×{ends}",
        _share(side, case),
        f"{side.loss_difference:.1e}",
    )


def _share(side: DeviceSide, case: DeviceCaseResult) -> str:
    if side.name != "split":
        return str(case.batch)
    if case.shares is None:
        return "not divided" if case.why_not else "not found yet"
    return ", ".join(f"{n} on {name}" for name, n in case.shares.items() if n)
