"""Time every optimizer with every number of threads in subprocesses, and summarise the results."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from cputrain.bench.child import CaseFailedError, run_case
from cputrain.bench.compare import Speedup, median
from cputrain.bench.optimizers.cases import CASES, named, shapes
from cputrain.errors import CputrainError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

IN_A_PROCESS = 24
"""Cells timed in one subprocess; few, so that a hang is detected by the timeout."""


class OptimizerCell(Record):
    """Steps over tensors of one number and size, with one number of threads."""

    num_tensors: int
    num_elements: int
    """Elements of each tensor."""

    touched: float
    """Fraction of rows with a nonzero gradient; 1 for dense gradients."""

    num_threads: int

    python_s: float
    """Median time of a step of torch's optimizer in seconds."""

    cputrain_s: float

    rounds: int
    """Number of rounds; more if fewer rounds showed a slowdown."""

    speedup: Speedup
    """Speed-up over torch's optimizer; median and range of the per-round ratios."""

    is_fused: bool
    """Whether the fused kernel ran; else the checks fell back to torch's function."""


class OptimizerResult(Record):
    """Cells of one optimizer."""

    name: str
    title: str
    cells: tuple[OptimizerCell, ...]


class OptimizerComparison(Record):
    """Result of the benchmark; `as_json()` gives the document that is written to disk."""

    schema_version: int = 1
    """Version of the document; incremented when a field changes its meaning."""

    threads: tuple[int, ...]

    versions: dict[str, str]
    """Versions of Python and of the packages involved."""

    cases: tuple[OptimizerResult, ...]

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
    """Time the named optimizers, by default all, with progress on stderr."""
    from cputrain import __version__

    chosen = named(names)
    cells = shapes(quick=quick)
    results = []
    for name in chosen:
        found: list[OptimizerCell] = []
        for num_threads in threads:
            for begin in range(0, len(cells), IN_A_PROCESS):
                some = cells[begin : begin + IN_A_PROCESS]
                request = {"name": name, "cells": some, "threads": num_threads, "rounds": rounds}
                found += [summarise(cell, num_threads) for cell in _answer(request)["cells"]]
                least = min(cell.speedup.median for cell in found[-len(some) :])
                print(
                    f"{CASES[name]}, threads: {num_threads}, {begin + len(some)} of {len(cells)} "
                    f"cells: speed of at least {least:.2f}",
                    file=sys.stderr,
                )
        results.append(OptimizerResult(name=name, title=CASES[name], cells=tuple(found)))
    return OptimizerComparison(
        threads=tuple(threads),
        versions={
            "python": platform.python_version(),
            "torch": importlib.metadata.version("torch"),
            "cputrain": __version__,
        },
        cases=tuple(results),
    )


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return run_case("cputrain.bench.optimizers", request)
    except CaseFailedError as error:
        raise CputrainError(
            f"steps of {request['name']}", "must come to an end", found=str(error)
        ) from error


def summarise(cell: dict[str, Any], num_threads: int) -> OptimizerCell:
    """Compute a cell's result from its rounds."""
    python, ours = cell["seconds"]["python"], cell["seconds"]["cputrain"]
    ratios = [theirs / mine for theirs, mine in zip(python, ours, strict=True)]
    return OptimizerCell(
        num_tensors=cell["num_tensors"],
        num_elements=cell["num_elements"],
        touched=cell["touched"],
        num_threads=num_threads,
        python_s=median(python),
        cputrain_s=median(ours),
        rounds=len(ratios),
        speedup=Speedup(median=median(ratios), lowest=min(ratios), highest=max(ratios)),
        is_fused=cell["is_fused"],
    )
