"""Tables of a loader comparison."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration, size
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
    from cputrain.bench.loaders.comparison import LoaderCaseResult, LoaderComparison, LoaderSide
    from cputrain.bench.tables import Table

COLUMNS = (
    "",
    "against torch",
    "median",
    "fastest to slowest (middle half)",
    "batches/s",
    "CPU time",
    "CPU time beyond the samples'",
    "memory of a worker",
    "of an empty worker",
)


def case_table(case: LoaderCaseResult) -> Table:
    """Return the header and rows of a case's table."""
    return without_empty_columns(COLUMNS, [_row(side) for side in case.sides])


def as_markdown(comparison: LoaderComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each case, and a footnote on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def footnote(comparison: LoaderComparison) -> str:
    """Return the footnote that explains the columns."""
    rounds = "1 round" if comparison.repeats == 1 else f"{comparison.repeats} rounds, interleaved"
    quick_note = (
        "Quick: the data is too small to say anything about speed. " if comparison.quick else ""
    )
    return (
        f"{quick_note}{rounds}. Epochs are timed from iter() of a new loader to the last batch, "
        "second epochs from its second iter(), first batches from constructing the loader. "
        '"Against torch" is the median of the ratios within each round, and their range. '
        "All loaders yielded the same batches in the same order."
    )


def _row(side: LoaderSide) -> tuple[str, ...]:
    return (
        side.name,
        _speedup(side),
        duration(side.median),
        format_range(side),
        format_or_dash(side.batches_per_second, digits),
        format_or_dash(side.cpu_seconds, _signed_duration),
        format_or_dash(side.cpu_seconds_beyond_samples, _signed_duration),
        format_or_dash(side.worker_bytes, size),
        format_or_dash(side.empty_worker_bytes, size),
    )


def _speedup(side: LoaderSide) -> str:
    if side.name == "torch":
        return "1 (reference)"
    speedup = side.speedup
    if speedup is None:
        return NOTHING
    if len(side.seconds) == 1:
        return f"{digits(speedup.median)}×"
    return f"{digits(speedup.median)}× ({digits(speedup.lowest)} to {digits(speedup.highest)})"


def _signed_duration(seconds: float) -> str:
    return duration(seconds) if seconds >= 0 else f"−{duration(-seconds)}"
