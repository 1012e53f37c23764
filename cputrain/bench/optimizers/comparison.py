"""Time every optimizer with every number of threads in subprocesses, and summarise the results."""

from __future__ import annotations

import sys
from statistics import median

from cputrain.bench.optimizers.cases import CASES, shapes
from cputrain.bench.selection import run_steps, select_names
from cputrain.measure.comparison import package_versions
from cputrain.measure.statistics import Speedup, speedup_by_round
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

CELLS_PER_PROCESS = 24
"""Cells timed in one subprocess; few, so that the timeout detects a hang."""


class OptimizerCell(Record):
    """Result for one number and size of tensors and one number of threads."""

    num_tensors: int
    """Number of tensors that the optimizer updates."""

    num_elements: int
    """Elements of each tensor."""

    touched: float
    """Fraction of rows with a nonzero gradient; 1 for dense gradients."""

    num_threads: int
    """Number of threads."""

    python_s: float
    """Median time of a step of torch's optimizer in seconds."""

    cputrain_s: float
    """Median time of a step with cputrain in seconds."""

    rounds: int
    """Number of rounds; several times as many if the first rounds showed a slowdown."""

    speedup: Speedup
    """Speed-up over torch's optimizer; median and range of the per-round ratios."""

    is_fused: bool
    """Whether the fused kernel ran; otherwise cputrain's checks chose torch's function."""


class OptimizerResult(Record):
    """Cells of one optimizer."""

    name: str
    """Key of `CASES`."""

    title: str
    """Heading of the table."""

    cells: tuple[OptimizerCell, ...]


class OptimizerComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    threads: tuple[int, ...]
    """Numbers of threads."""

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[OptimizerResult, ...]
    """Result of each optimizer."""

    @property
    def slowest(self) -> OptimizerCell:
        """The cell with the smallest speed-up."""
        cells = [cell for case in self.cases for cell in case.cells]
        return min(cells, key=lambda cell: cell.speedup.median)


def compare_optimizers(
    names: Sequence[str] = (),
    *,
    threads: Sequence[int] = (1,),
    rounds: int = 9,
    quick: bool = False,
) -> OptimizerComparison:
    """Time the named optimizers, by default all, and print progress on stderr.

    Args:
        names: Keys of `CASES`.
        threads: Numbers of threads.
        rounds: Number of rounds.
        quick: Whether to run a few small cells only.

    Raises:
        NotFound: There is no such optimizer.
        CputrainError: A subprocess failed or timed out.
    """
    selected = select_names(names, CASES, "optimizer")
    cells = shapes(quick=quick)
    results = []
    for name in selected:
        optimizer_cells: list[OptimizerCell] = []
        for num_threads in threads:
            for begin in range(0, len(cells), CELLS_PER_PROCESS):
                chunk = cells[begin : begin + CELLS_PER_PROCESS]
                request = {"name": name, "cells": chunk, "threads": num_threads, "rounds": rounds}
                optimizer_cells += [
                    summarise(cell, num_threads)
                    for cell in run_steps("cputrain.bench.optimizers", request)["cells"]
                ]
                min_speedup = min(cell.speedup.median for cell in optimizer_cells[-len(chunk) :])
                print(
                    f"{CASES[name]}, threads: {num_threads}, {begin + len(chunk)} of {len(cells)} "
                    f"cells: speed-up of at least {min_speedup:.2f}",
                    file=sys.stderr,
                )
        results.append(OptimizerResult(name=name, title=CASES[name], cells=tuple(optimizer_cells)))
    return OptimizerComparison(
        threads=tuple(threads),
        versions=package_versions(),
        cases=tuple(results),
    )


def summarise(cell: dict[str, Any], num_threads: int) -> OptimizerCell:
    """Compute a cell's statistics from the step times of all rounds."""
    python_seconds, cputrain_seconds = cell["seconds"]["python"], cell["seconds"]["cputrain"]
    return OptimizerCell(
        num_tensors=cell["num_tensors"],
        num_elements=cell["num_elements"],
        touched=cell["touched"],
        num_threads=num_threads,
        python_s=median(python_seconds),
        cputrain_s=median(cputrain_seconds),
        rounds=len(python_seconds),
        speedup=speedup_by_round(python_seconds, cputrain_seconds),
        is_fused=cell["is_fused"],
    )
