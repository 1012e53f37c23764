"""A comparison of loaders as tables."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration, line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.loaders.comparison import CaseResult, LoaderComparison, LoaderSide

COLUMNS = (
    "",
    "against torch",
    "median",
    "fastest to slowest (middle half)",
    "batches/s",
    "CPU time",
    "CPU time beyond the samples'",
)


def case_table(case: CaseResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows of a case's table, without what it does not measure."""
    rows = [_row(side) for side in case.sides]
    kept = [
        place
        for place, _ in enumerate(COLUMNS)
        if not place or any(row[place] != "–" for row in rows)
    ]
    return tuple(COLUMNS[i] for i in kept), [tuple(row[i] for i in kept) for row in rows]


def as_markdown(comparison: LoaderComparison, *, machine_line: str) -> str:
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


def absent(case: CaseResult) -> str:
    """Who took no part in a case, and why."""
    told = "; ".join(f"{name} ({reason})" for name, reason in case.left_out.items())
    return f"Left out: {told}."


def reading(comparison: LoaderComparison) -> str:
    """What the figures are."""
    rounds = "1 round" if comparison.repeats == 1 else f"{comparison.repeats} rounds, interleaved"
    small = "Quick: the data is too small to say anything about speed. " if comparison.quick else ""
    return (
        f"{small}{rounds}; an epoch is timed from iter() of a fresh loader, a first batch from "
        'making the loader. "Against torch" is the median of the rounds\' ratios, with its ends. '
        "Every loader handed out the same batches in the same order."
    )


def _row(side: LoaderSide) -> tuple[str, ...]:
    return (
        side.name,
        _speedup(side),
        duration(side.median),
        _spread(side),
        "–" if side.batches_per_second is None else digits(side.batches_per_second),
        _time(side.cpu_seconds),
        _time(side.cpu_seconds_beyond_samples),
    )


def _speedup(side: LoaderSide) -> str:
    if side.name == "torch":
        return "1 (reference)"
    found = side.speedup
    if found is None:
        return "–"
    if len(side.seconds) == 1:
        return f"{digits(found.median)}×"
    return f"{digits(found.median)}× ({digits(found.lowest)} to {digits(found.highest)})"


def _spread(side: LoaderSide) -> str:
    if len(side.seconds) == 1:
        return duration(side.median)
    low, high = (duration(seconds) for seconds in side.quartiles)
    return f"{duration(side.fastest)} to {duration(side.slowest)} ({low} to {high})"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return duration(seconds) if seconds >= 0 else f"−{duration(-seconds)}"
