"""Tables of an optimizer comparison."""

from __future__ import annotations

from cputrain.bench.markdown import digits, duration
from cputrain.bench.optimizers.cases import MIN_SPEEDUP
from cputrain.bench.tables import markdown_page, without_empty_columns
from cputrain.counting import counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.bench.optimizers.comparison import (
        OptimizerCell,
        OptimizerComparison,
        OptimizerResult,
    )
    from cputrain.bench.tables import Table


def case_table(result: OptimizerResult) -> Table:
    """Return the header and rows: tensor shapes in rows, numbers of threads in columns."""
    threads = list(dict.fromkeys(cell.num_threads for cell in result.cells))
    head = ["tensors × elements"]
    for num_threads in threads:
        thread_text = f"{num_threads} thread{'s' * (num_threads != 1)}"
        head += [f"python, {thread_text}", f"cputrain, {thread_text}"]
    rows: dict[str, dict[int, OptimizerCell]] = {}
    for cell in result.cells:
        rows.setdefault(_shape_name(cell), {})[cell.num_threads] = cell
    return without_empty_columns(
        tuple(head),
        [
            (name, *(text for num_threads in threads for text in _cells_of(cells[num_threads])))
            for name, cells in rows.items()
        ],
    )


def case_note(result: OptimizerResult) -> str:
    """Return the cells whose speed-up is below `MIN_SPEEDUP`; empty if there are none."""
    slow_cells = [
        f"{_shape_name(cell)} with {counted(cell.num_threads, 'thread')} "
        f"({digits(cell.speedup.median)})"
        for cell in result.cells
        if cell.speedup.median < MIN_SPEEDUP
    ]
    return f"Below {MIN_SPEEDUP} of python's speed: {'; '.join(slow_cells)}." if slow_cells else ""


def footnote(comparison: OptimizerComparison) -> str:
    """Return the footnote that explains the columns."""
    slowest = comparison.slowest
    return (
        "Columns of python: median time of `optimizer.step()`. Columns of cputrain: speed-up over "
        "python, the median of the ratios within each of the interleaved rounds in one process. "
        "With one thread, CPU time is measured, which other processes do not lengthen. "
        "An asterisk marks steps by the fused kernel; all others ran torch's function after "
        f"cputrain's checks. Smallest speed-up: {digits(slowest.speedup.median)} "
        f"({_shape_name(slowest)}, {slowest.num_threads} threads)."
    )


def as_markdown(comparison: OptimizerComparison, *, machine_line: str) -> str:
    """Render the machine, a table for each optimizer, and a footnote on the columns."""
    tables = [(case.title, case_table(case), case_note(case)) for case in comparison.cases]
    return markdown_page(machine_line, comparison.versions, tables, footnote(comparison))


def _shape_name(cell: OptimizerCell) -> str:
    name = f"{cell.num_tensors} × {cell.num_elements:,}"
    return name if cell.touched == 1.0 else f"{name}, {cell.touched:.1%} of rows touched"


def _cells_of(cell: OptimizerCell) -> tuple[str, str]:
    return duration(cell.python_s), f"{digits(cell.speedup.median)}{'*' if cell.is_fused else ''}"
