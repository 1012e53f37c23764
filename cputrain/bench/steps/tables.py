"""Tables of a comparison of steps."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration
from cputrain.bench.steps.cases import WAYS
from cputrain.bench.tables import markdown_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.steps.comparison import StepComparison, StepResult, StepTimes
    from cputrain.bench.tables import Table

HEAD = ("way", "threads", "step", "speed-up", "first steps", "losses")


def case_table(result: StepResult) -> Table:
    """Return the header and rows: a row for each way and number of threads."""
    return HEAD, [_row(times) for times in result.times]


def case_note(_: StepResult) -> str:
    """Return the remark below a table: there is none."""
    return ""


def footnote(comparison: StepComparison) -> str:
    """Return the footnote that explains the columns."""
    return (
        f"Medians of {comparison.rounds} interleaved rounds in one process. Speed-ups are over "
        "eager steps, the median, lowest and highest ratio within each round. First steps: time of "
        "the first 20 steps, which compile. Losses: largest relative difference of these steps' "
        "losses from those of eager steps."
    )


def as_markdown(comparison: StepComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each network, and a footnote on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def _row(times: StepTimes) -> tuple[str, ...]:
    speedup = times.speedup
    return (
        WAYS[times.way], str(times.num_threads), duration(times.seconds),
        f"{digits(speedup.median)} ({digits(speedup.lowest)} to {digits(speedup.highest)})",
        duration(times.compile_seconds), f"{times.loss_difference:.0e}",
    )  # fmt: skip
