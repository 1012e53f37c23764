"""Tables of a device comparison."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration
from cputrain.bench.tables import markdown_page, without_empty_columns

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
    """Return the header and rows of a case's table."""
    return without_empty_columns(COLUMNS, [_row(side, case) for side in case.sides])


def as_markdown(comparison: DeviceComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each case, and a note on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def case_note(case: DeviceCaseResult) -> str:
    """Return why Split cannot shard the batch; empty if it decided by speed."""
    return f"Not divided: {case.why_not}." if case.why_not else ""


def footnote(comparison: DeviceComparison) -> str:
    """Return the note that explains the columns."""
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
