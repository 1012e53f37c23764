"""Several contenders in several cases, as tables: what loaders, pools and devices share."""

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
        """What one case found."""

        @property
        def left_out(self) -> Mapping[str, str]: ...


NOTHING = "–"
"""In the place of what was not measured."""


def measured(columns: Sequence[str], rows: Sequence[tuple[str, ...]]) -> Table:
    """The head and the rows of a table, without columns in which nothing was measured."""
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
    """Markdown: the machine, a table for each case with what stands above it and below, and how
    to read them."""
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
    """Who took no part in a case, and why; empty if all did."""
    told = "; ".join(f"{name} ({reason})" for name, reason in case.left_out.items())
    return f"Left out: {told}." if told else ""


def spread(side: Timed) -> str:
    """From the fastest round to the slowest."""
    if len(side.seconds) == 1:
        return duration(side.median)
    low, high = (duration(seconds) for seconds in side.quartiles)
    return f"{duration(side.fastest)} to {duration(side.slowest)} ({low} to {high})"


def known(value: float | None, shown: Callable[[float], str]) -> str:
    """A figure, where there is one."""
    return NOTHING if value is None else shown(value)
