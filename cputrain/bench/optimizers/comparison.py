"""Every optimizer with every number of threads, each in a process, and what that found."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from cputrain.bench.child import CaseFailedError, answer_of
from cputrain.bench.compare import Speedup, median
from cputrain.bench.optimizers.cases import CASES, named, shapes
from cputrain.errors import CputrainError
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

IN_A_PROCESS = 24
"""Cells that are timed before the next process: one that hangs is ended after a while."""


class OptimizerCell(Record):
    """Steps over tensors of one number and size, with one number of threads."""

    num_tensors: int
    num_elements: int
    """Of each tensor."""

    touched: float
    """The part of the rows that have a gradient; 1 where tensors have no rows."""

    num_threads: int

    python_s: float
    """Of a step, in the middle round."""

    cputrain_s: float

    rounds: int
    """How many were timed: more where fewer had told of a slower step."""

    speedup: Speedup
    """Of python's speed: the median of the rounds' ratios, and its ends."""

    is_fused: bool
    """Whether the kernel ran; else torch's own function did, after the checks."""


class OptimizerResult(Record):
    """One optimizer."""

    name: str
    title: str
    cells: tuple[OptimizerCell, ...]


class OptimizerComparison(Record):
    """Everything that was found; `as_json()` is what is written to disk."""

    schema_version: int = 1
    """Grows when a field changes its meaning."""

    threads: tuple[int, ...]

    versions: dict[str, str]
    """Of Python and of the packages that took part."""

    cases: tuple[OptimizerResult, ...]

    @property
    def slowest(self) -> OptimizerCell:
        """The cell with the least speed."""
        cells = [cell for case in self.cases for cell in case.cells]
        return min(cells, key=lambda cell: cell.speedup.median)


def compare_optimizers(
    names: Sequence[str] = (),
    *,
    threads: Sequence[int] = (1,),
    rounds: int = 9,
    quick: bool = False,
) -> OptimizerComparison:
    """Time the named optimizers, by default all, and narrate on stderr."""
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
        return answer_of("cputrain.bench.optimizers", request)
    except CaseFailedError as error:
        raise CputrainError(
            f"steps of {request['name']}", "must come to an end", found=str(error)
        ) from error


def summarise(cell: dict[str, Any], num_threads: int) -> OptimizerCell:
    """Return what a cell's rounds amount to."""
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
