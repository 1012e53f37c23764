"""Tables of an optimizer comparison."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration
from cputrain.bench.tables import markdown_page, without_empty_columns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.optimizers.comparison import (
        OptimizerCell,
        OptimizerComparison,
        OptimizerResult,
    )
    from cputrain.bench.tables import Table

FLOOR = 0.98
"""Speed-up below which cells are listed under the table."""


def case_table(result: OptimizerResult) -> Table:
    """Return the header and rows: tensor shapes in rows, numbers of threads in columns."""
    threads = list(dict.fromkeys(cell.num_threads for cell in result.cells))
    head = ["tensors × elements"]
    for count in threads:
        told = f"{count} thread{'s' * (count != 1)}"
        head += [f"python, {told}", f"cputrain, {told}"]
    rows: dict[str, dict[int, OptimizerCell]] = {}
    for cell in result.cells:
        rows.setdefault(_tensors(cell), {})[cell.num_threads] = cell
    return without_empty_columns(
        tuple(head),
        [
            (name, *(shown for count in threads for shown in _shown(cells[count])))
            for name, cells in rows.items()
        ],
    )


def case_note(result: OptimizerResult) -> str:
    """Return the cells whose speed-up is below the floor; empty if there are none."""
    slow = [
        f"{_tensors(cell)} with {cell.num_threads} threads ({digits(cell.speedup.median)})"
        for cell in result.cells
        if cell.speedup.median < FLOOR
    ]
    return f"Below {FLOOR} of python's speed: {'; '.join(slow)}." if slow else ""


def footnote(comparison: OptimizerComparison) -> str:
    """Return the note that explains the columns."""
    slowest = comparison.slowest
    return (
        "Times are of `optimizer.step()`, in the middle round; cputrain's is told as its speed, "
        "python's being 1: the median of the rounds' ratios, in turns within one process. "
        "With one thread its own CPU time is taken, which other processes do not lengthen. "
        "An asterisk marks steps that the fused kernel took; the others are torch's own, after the "
        f"checks. The least of all cells: {digits(slowest.speedup.median)} ({_tensors(slowest)}, "
        f"{slowest.num_threads} threads)."
    )


def as_markdown(comparison: OptimizerComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each optimizer, and a note on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def _tensors(cell: OptimizerCell) -> str:
    name = f"{cell.num_tensors} × {cell.num_elements:,}"
    return name if cell.touched == 1.0 else f"{name}, {cell.touched:.1%} of rows touched"


def _shown(cell: OptimizerCell) -> tuple[str, str]:
    return duration(cell.python_s), f"{digits(cell.speedup.median)}{'*' if cell.is_fused else ''}"
