"""A comparison of pools as tables."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.pools.comparison import PoolCaseResult, PoolComparison, PoolSide

COLUMNS = (
    "",
    "median",
    "fastest to slowest (middle half)",
    "against the best other",
    "CPU time",
)


def case_table(case: PoolCaseResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows of a case's table, without what it does not measure."""
    rows = [_row(side) for side in case.sides]
    kept = [
        place
        for place, _ in enumerate(COLUMNS)
        if not place or any(row[place] != "–" for row in rows)
    ]
    return tuple(COLUMNS[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def as_markdown(comparison: PoolComparison, *, machine_line: str) -> str:
    """The machine, a table for each case, and how to read them."""
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    lines = [f"{machine_line}; {versions}", ""]
    for case in comparison.cases:
        head, rows = case_table(case)
        lines += [
            f"### {case.title[0].upper()}{case.title[1:]}",
            "",
            line(head),
            "| --- |" + " ---: |" * (len(head) - 1),
            *(line(row) for row in rows),
            "",
        ]
        lines += [f"{absent(case)}\n"] if case.left_out else []
    return "\n".join([*lines, reading(comparison), ""])


def absent(case: PoolCaseResult) -> str:
    """Who took no part in a case, and why."""
    told = "; ".join(f"{name} ({reason})" for name, reason in case.left_out.items())
    return f"Left out: {told}."


def reading(comparison: PoolComparison) -> str:
    """What the figures are."""
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds, interleaved"
    small = "Quick: too little is done to say anything about speed. " if comparison.quick else ""
    workers = "1 process" if comparison.processes == 1 else f"{comparison.processes} processes"
    return (
        f"{small}{rounds}, each run in a fresh process; {workers} in each pool. "
        '"Against the best other" is how many times as fast a pool is as the best of the others: '
        "the median of the rounds' ratios, with its ends. "
        "Every pool returned the same results in the same order."
    )


def _row(side: PoolSide) -> tuple[str, ...]:
    return (
        side.name,
        duration(side.median),
        _spread(side),
        _speedup(side),
        "–" if side.cpu_seconds is None else duration(side.cpu_seconds),
    )


def _spread(side: PoolSide) -> str:
    if len(side.seconds) == 1:
        return duration(side.median)
    low, high = (duration(seconds) for seconds in side.quartiles)
    return f"{duration(side.fastest)} to {duration(side.slowest)} ({low} to {high})"


def _speedup(side: PoolSide) -> str:
    found = side.speedup
    if found is None:
        return "–"
    if len(side.seconds) == 1:
        return f"{digits(found.median)}× {side.best_other}"
    ends = f"({digits(found.lowest)} to {digits(found.highest)})"
    return f"{digits(found.median)}× {side.best_other} {ends}"
