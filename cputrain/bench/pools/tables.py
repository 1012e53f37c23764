"""Tables of a pool comparison."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration
from cputrain.bench.tables import (
    NOTHING,
    case_note,
    format_or_dash,
    format_range,
    markdown_page,
    without_empty_columns,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.pools.comparison import PoolCaseResult, PoolComparison, PoolSide
    from cputrain.bench.tables import Table

COLUMNS = (
    "",
    "median",
    "fastest to slowest (middle half)",
    "against the best other",
    "CPU time",
)


def case_table(case: PoolCaseResult) -> Table:
    """Return the header and rows of a case's table."""
    return without_empty_columns(COLUMNS, [_row(side) for side in case.sides])


def as_markdown(comparison: PoolComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each case, and a footnote on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def footnote(comparison: PoolComparison) -> str:
    """Return the footnote that explains the columns."""
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds, interleaved"
    quick_note = (
        "Quick: the cases are too small to say anything about speed. " if comparison.quick else ""
    )
    workers = "1 process" if comparison.processes == 1 else f"{comparison.processes} processes"
    return (
        f"{quick_note}{rounds}, each run in a fresh process; {workers} in each pool. "
        '"Against the best other" is the speed-up over the fastest other pool: '
        "the median of the ratios within each round, and their range. "
        "All pools returned the same results in the same order."
    )


def _row(side: PoolSide) -> tuple[str, ...]:
    return (
        side.name,
        duration(side.median),
        format_range(side),
        _speedup(side),
        format_or_dash(side.cpu_seconds, duration),
    )


def _speedup(side: PoolSide) -> str:
    speedup = side.speedup
    if speedup is None:
        return NOTHING
    if len(side.seconds) == 1:
        return f"{digits(speedup.median)}× {side.best_other}"
    ratio_range = f"({digits(speedup.lowest)} to {digits(speedup.highest)})"
    return f"{digits(speedup.median)}× {side.best_other} {ratio_range}"
