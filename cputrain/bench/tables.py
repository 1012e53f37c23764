"""Tables of several contenders in several cases, shared by loaders, pools, devices and networks."""

from __future__ import annotations

from cputrain.bench.markdown import duration, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    Table = tuple[tuple[str, ...], list[tuple[str, ...]]]

    class Timed(Protocol):
        """One contender in one case, over all rounds."""

        @property
        def seconds(self) -> Sequence[float]: ...
        @property
        def median(self) -> float: ...
        @property
        def fastest(self) -> float: ...
        @property
        def slowest(self) -> float: ...
        @property
        def quartiles(self) -> tuple[float, float]: ...

    class Case(Protocol):
        """Results of one case."""

        @property
        def left_out(self) -> Mapping[str, str]: ...


NOTHING = "–"
"""Cell of a value that was not measured."""


def measured(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """Return the header and rows of a table without columns in which nothing was measured."""
    kept = [
        place
        for place, _ in enumerate(columns)
        if not place or any(row[place] != NOTHING for row in rows)
    ]
    return tuple(columns[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def page(
    machine: str,
    versions: Mapping[str, str],
    tables: Sequence[tuple[str, Table, str]],
    reading: str,
) -> str:
    """Render the machine, the versions, a titled table for each case, and a note on the columns."""
    lines = [f"{machine}; {', '.join(f'{name} {one}' for name, one in versions.items())}", ""]
    for title, (head, rows), note in tables:
        lines += [
            f"### {title[0].upper()}{title[1:]}",
            "",
            line(head),
            "| --- |" + " ---: |" * (len(head) - 1),
            *(line(row) for row in rows),
            "",
        ]
        lines += [f"{note}\n"] if note else []
    return "\n".join([*lines, reading, ""])


def below(case: Case) -> str:
    """Return the contenders left out of a case and the reasons; empty if there are none."""
    told = "; ".join(f"{name} ({reason})" for name, reason in case.left_out.items())
    return f"Left out: {told}." if told else ""


def spread(side: Timed) -> str:
    """Format the range from the fastest to the slowest round, with the quartiles."""
    if len(side.seconds) == 1:
        return duration(side.median)
    low, high = (duration(seconds) for seconds in side.quartiles)
    return f"{duration(side.fastest)} to {duration(side.slowest)} ({low} to {high})"


def known(value: float | None, shown: Callable[[float], str]) -> str:
    """Format a value, or return a dash if it was not measured."""
    return NOTHING if value is None else shown(value)
