"""Tables of several cases, one row for each side, shared by the benchmarks without a script."""

from __future__ import annotations

from cputrain.bench.markdown import duration, table_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from cputrain.measure.comparison import TimedSide

    Table = tuple[tuple[str, ...], list[tuple[str, ...]]]

    class TableCase(Protocol):
        """Results of one case, as far as `case_note` reads them."""

        @property
        def left_out(self) -> Mapping[str, str]: ...


NOTHING = "–"
"""Cell of a value that was not measured."""


def without_empty_columns(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return header and rows without the columns that hold no measured value in any row.

    The first column, which has the names of the rows, is always kept.
    """
    kept_columns = [
        column
        for column, _ in enumerate(columns)
        if not column or any(row[column] != NOTHING for row in rows)
    ]
    return tuple(columns[column] for column in kept_columns), [
        tuple(row[column] for column in kept_columns) for row in rows
    ]


def markdown_page(
    machine_line: str,
    versions: Mapping[str, str],
    tables: Sequence[tuple[str, Table, str]],
    footnote: str,
) -> str:
    """Render the machine, versions, a table with title and note for each case, and a footnote."""
    lines = [
        f"{machine_line}; {', '.join(f'{name} {version}' for name, version in versions.items())}",
        "",
    ]
    for title, (head, rows), note in tables:
        lines += [
            f"### {title[0].upper()}{title[1:]}",
            "",
            table_line(head),
            "| --- |" + " ---: |" * (len(head) - 1),
            *(table_line(row) for row in rows),
            "",
        ]
        lines += [f"{note}\n"] if note else []
    return "\n".join([*lines, footnote, ""])


def case_note(case: TableCase) -> str:
    """Return which loaders or pools were left out of a case and why; empty if none was."""
    reasons = "; ".join(f"{name} ({reason})" for name, reason in case.left_out.items())
    return f"Left out: {reasons}." if reasons else ""


def format_range(side: TimedSide) -> str:
    """Format the range from the fastest to the slowest round, with the quartiles."""
    if len(side.seconds) == 1:
        return duration(side.median)
    quartile_1, quartile_3 = (duration(seconds) for seconds in side.quartiles)
    return f"{duration(side.fastest)} to {duration(side.slowest)} ({quartile_1} to {quartile_3})"


def format_or_dash(value: float | None, formatter: Callable[[float], str]) -> str:
    """Format a value, or return a dash if it was not measured."""
    return NOTHING if value is None else formatter(value)
