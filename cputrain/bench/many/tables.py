"""Tables of a comparison of ways to run many trainings."""

from __future__ import annotations

from cputrain.bench.many.cases import OURS, WAYS
from cputrain.bench.markdown import digits, duration, size
from cputrain.bench.tables import NOTHING, case_note, format_range, markdown_page

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.many.comparison import ManyCaseResult, ManyComparison, ManySide
    from cputrain.bench.tables import Table


def case_table(case: ManyCaseResult) -> Table:
    """Return the header and rows of a case's table."""
    ours = [side for side in case.sides if side.name in OURS]
    head = ("", "median", "fastest to slowest (middle half)",
            *(f"{WAYS[side.name]} is" for side in ours), "memory", "peak")  # fmt: skip
    return head, [_row(side, ours) for side in case.sides]


def as_markdown(comparison: ManyComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each case, and a footnote on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def footnote(comparison: ManyComparison) -> str:
    """Return the footnote that explains the columns."""
    rounds = "1 round" if comparison.rounds == 1 else f"{comparison.rounds} rounds, interleaved"
    worst = max((case.loss_difference for case in comparison.cases), default=0.0)
    return (
        f"{comparison.num_jobs} trainings each; {rounds}. Times are those of all trainings, the "
        "starts of processes included. Speed-ups are medians of the ratios within each round. "
        "Memory is the median, over the run, of the memory of all processes. "
        f"Losses differ from those of plain python by at most {worst:.1e}, relatively."
    )


def _row(side: ManySide, ours: list[ManySide]) -> tuple[str, ...]:
    return (
        WAYS[side.name],
        duration(side.median),
        format_range(side),
        *(
            f"{digits(our.speedups[side.name].median)}× as fast"
            if side.name in our.speedups
            else NOTHING
            for our in ours
        ),
        size(side.median_bytes),
        size(side.peak_bytes),
    )
