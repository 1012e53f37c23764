"""Run one case once in one pool: wall time, CPU time, and verification of the results."""

from __future__ import annotations

import gc
import os
import time
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import torch

from cputrain.bench.pools import tasks
from cputrain.errors import CputrainError
from cputrain.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cputrain.bench.pools.cases import Case
    from cputrain.bench.pools.contenders import Contender, Ways


class Run(Record):
    """Measurements of one run of a pool."""

    case: str
    contender: str

    seconds: float
    """Time from the call to its last result, or from the constructor to the first result."""

    cpu_seconds: float | None
    """CPU time of this process and its workers in that interval; None for a start."""

    results: int
    """Number of results, all verified."""


def run(case: Case, contender: Contender, processes: int) -> Run:
    """Run a case in a pool; raise if a result differs from the function's result without a pool."""
    _allow_open_files()
    import_module(contender.module)
    if case.way in ("start", "start after threads"):
        return _start(case, contender, processes)
    # forked workers inherit the number of threads; more than one each would oversubscribe the
    # cores, which depends on a setting, not on the pool
    torch.set_num_threads(1)
    items = _items(case, case.count)
    big = torch.arange(case.elements, dtype=torch.float32) if case.elements else None
    results: Any
    out = torch.zeros(case.count, tasks.WIDTH, dtype=torch.uint8) if case.way == "fill" else None
    with contender.opened(processes, big) as ways:
        _warm(case, contender, ways, big, processes)
        gc.collect()  # collect garbage of the imports before the timed part
        cpu = cpu_seconds()
        begin = time.perf_counter()
        if case.way == "one by one":
            results = _taken(ways.one_by_one(case.function, items, case.chunksize))
        elif case.way == "kept":
            results = ways.kept(case.function, items, case.chunksize)
        elif case.way == "partial":
            results = ways.with_partial(case.function, big, items)
        elif out is not None:
            ways.filled(case.function, out)
            results = out
        else:
            results = ways.with_argument(case.function, big, items)
        seconds = time.perf_counter() - begin
        used = cpu_seconds() - cpu
        _check(case, contender, results, big, items)
    return Run(
        case=case.name,
        contender=contender.name,
        seconds=seconds,
        cpu_seconds=used,
        results=len(results),
    )


def _start(case: Case, contender: Contender, processes: int) -> Run:
    if case.way == "start after threads":
        torch.set_num_threads(2)
        matrix = torch.ones(1024, 1024)
        torch.mm(matrix, matrix)
    gc.collect()
    begin = time.perf_counter()
    with contender.opened(processes, None) as ways:
        results = ways.kept(case.function, [16], None)
        seconds = time.perf_counter() - begin
        _check(case, contender, results, None, [16])
    return Run(
        case=case.name, contender=contender.name, seconds=seconds, cpu_seconds=None, results=1
    )


def _warm(case: Case, contender: Contender, ways: Ways, big: Any, processes: int) -> None:
    """Run a few tasks, so that every worker has started, and verify their results."""
    items = _items(case, 4 * processes, most_bytes=4096)
    results: Any
    if case.warmed_with is not None:
        case = case.replace(function=case.warmed_with)
    if case.way == "fill":
        results = torch.zeros(len(items), tasks.WIDTH, dtype=torch.uint8)
        ways.filled(case.function, results)
    elif big is None:
        results = list(ways.one_by_one(case.function, items, 1))
    else:  # with a small argument: the cost of the large one is what is timed
        big = big if contender.given_early else big[:4096].clone()
        results = ways.with_partial(case.function, big, items)
    _check(case, contender, results, big, items)


def _items(case: Case, count: int, most_bytes: int = 1 << 62) -> Sequence[Any]:
    if not case.array_bytes:
        return range(count)
    elements = min(case.array_bytes, most_bytes) // 8
    return [np.full(elements, number, np.int64) for number in range(count)]


def _taken(results: Iterable[Any]) -> list[Any]:
    """Consume results: keep the first and last element of tensors, and everything else whole."""
    return [
        (one[0].item(), one[-1].item()) if isinstance(one, torch.Tensor) else one for one in results
    ]


def _check(
    case: Case, contender: Contender, results: Sequence[Any], big: Any, items: Sequence[Any]
) -> None:
    function = case.function if big is None else partial(case.function, big)
    if case.way == "fill":
        function = partial(_row, case.function)
    if len(results) != len(items):
        raise _wrong(case, contender, f"{len(items)} results", str(len(results)))
    for result, item in zip(results, items, strict=True):
        expected = function(item)
        if isinstance(expected, np.ndarray):
            right = np.array_equal(result, expected)
        elif isinstance(result, torch.Tensor):
            right = torch.equal(result, expected)
        elif isinstance(expected, torch.Tensor):
            right = result == (expected[0].item(), expected[-1].item())
        else:
            right = result == expected
        if not right:
            raise _wrong(case, contender, f"{expected} for {item}", str(result))


def _row(write: Any, number: int) -> torch.Tensor:
    return tasks.rows(write, range(number, number + 1))[0]


def _wrong(case: Case, contender: Contender, expected: str, found: str) -> CputrainError:
    return CputrainError(
        f"the results of {contender.name!r} in {case.name}",
        f"must be the function's: {expected}",
        found=found,
        do="A pool that returns something else cannot be compared; please report it.",
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and all its descendants."""
    _, _, user, system, _ = os.times()  # reaped children
    used = time.process_time() + user + system
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # the process has exited
            continue
        used += times.user + times.system
    return used


def _allow_open_files() -> None:
    """Raise the limit on open files: torch's pool needs a descriptor for each live tensor."""
    try:
        import resource
    except ImportError:  # not available on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
