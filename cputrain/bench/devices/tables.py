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
    "step time",
    "samples/s",
    "against the fastest alone",
    "shard sizes",
    "loss difference",
)


def case_table(case: DeviceCaseResult) -> Table:
    """Return the header and rows of a case's table."""
    return without_empty_columns(COLUMNS, [_row(side, case) for side in case.sides])


def as_markdown(comparison: DeviceComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each case, and a footnote on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def case_note(case: DeviceCaseResult) -> str:
    """Return why Split cannot shard the batch; empty if it decided by speed."""
    return f"Not sharded: {case.why_not}." if case.why_not else ""


def footnote(comparison: DeviceComparison) -> str:
    """Return the footnote that explains the columns."""
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds, interleaved"
    quick_note = (
        "Quick: the cases are too small to say anything about speed. " if comparison.quick else ""
    )
    fractions = ", ".join(f"{case.name} {case.of_the_sum:.2f}" for case in comparison.cases)
    return (
        f"{quick_note}{rounds}. The home device is {comparison.devices[0]}. Split chose the shard "
        "sizes; one device has the whole batch where it is faster alone. Throughput with "
        f"sharding as a fraction of the devices' added throughput: {fractions}."
    )


def _row(side: DeviceSide, case: DeviceCaseResult) -> tuple[str, ...]:
    speedup = side.speedup
    ratio_range = (
        f" ({digits(speedup.lowest)} to {digits(speedup.highest)})" if len(side.seconds) > 1 else ""
    )
    return (
        side.name,
        duration(side.median),
        digits(side.samples_per_second),
        f"{digits(speedup.median)}×{ratio_range}",
        _shard_sizes(side, case),
        f"{side.loss_difference:.1e}",
    )


def _shard_sizes(side: DeviceSide, case: DeviceCaseResult) -> str:
    if side.name != "split":
        return str(case.batch)
    if case.shares is None:
        return "not sharded" if case.why_not else "not chosen yet"
    return ", ".join(
        f"{num_samples} on {name}" for name, num_samples in case.shares.items() if num_samples
    )
