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
    from cputrain.bench.loaders.comparison import CaseResult, LoaderComparison, LoaderSide
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


def case_table(case: CaseResult) -> Table:
    """Return the header and rows of a case's table."""
    return without_empty_columns(COLUMNS, [_row(side) for side in case.sides])


def as_markdown(comparison: LoaderComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each case, and a note on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def footnote(comparison: LoaderComparison) -> str:
    """Return the note that explains the columns."""
    rounds = "1 round" if comparison.repeats == 1 else f"{comparison.repeats} rounds, interleaved"
    small = "Quick: the data is too small to say anything about speed. " if comparison.quick else ""
    return (
        f"{small}{rounds}; an epoch is timed from iter() of a fresh loader, a later one "
        "from its second iter(), a first batch from "
        'making the loader. "Against torch" is the median of the rounds\' ratios, with its ends. '
        "Every loader handed out the same batches in the same order."
    )


def _row(side: LoaderSide) -> tuple[str, ...]:
    return (
        side.name,
        _speedup(side),
        duration(side.median),
        format_range(side),
        format_or_dash(side.batches_per_second, digits),
        format_or_dash(side.cpu_seconds, _time),
        format_or_dash(side.cpu_seconds_beyond_samples, _time),
        format_or_dash(side.worker_bytes, size),
        format_or_dash(side.empty_worker_bytes, size),
    )


def _speedup(side: LoaderSide) -> str:
    if side.name == "torch":
        return "1 (reference)"
    found = side.speedup
    if found is None:
        return NOTHING
    if len(side.seconds) == 1:
        return f"{digits(found.median)}×"
    return f"{digits(found.median)}× ({digits(found.lowest)} to {digits(found.highest)})"


def _time(seconds: float) -> str:
    return duration(seconds) if seconds >= 0 else f"−{duration(-seconds)}"
