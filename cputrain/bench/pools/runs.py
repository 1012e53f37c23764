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

    from cputrain.bench.pools.cases import PoolCase
    from cputrain.bench.pools.contenders import PoolContender, PoolMethods


class PoolRun(Record):
    """Measurements of one run of a pool."""

    case: str
    """Name of the case."""

    contender: str
    """Name of the pool."""

    seconds: float
    """Time from the call to its last result, or from the constructor to the first result."""

    cpu_seconds: float | None
    """CPU time of this process and its workers in that interval; None for a start."""

    results: int
    """Number of results, all verified."""


def run(case: PoolCase, contender: PoolContender, processes: int) -> PoolRun:
    """Run a case in a pool, verify the results, and return the measurements.

    Raises:
        CputrainError: A result differs from what the function returns without a pool.
    """
    _allow_open_files()
    import_module(contender.module)
    if case.method in ("start", "start after threads"):
        return _run_start(case, contender, processes)
    # forked workers inherit the number of threads; more than one thread in each would measure
    # oversubscription instead of the pool
    torch.set_num_threads(1)
    items = _items(case, case.num_tasks)
    large = torch.arange(case.num_elements, dtype=torch.float32) if case.num_elements else None
    results: Any
    out = (
        torch.zeros(case.num_tasks, tasks.WIDTH, dtype=torch.uint8)
        if case.method == "fill"
        else None
    )
    with contender.open_pool(processes, large) as methods:
        _warm_up(case, contender, methods, large, processes)
        gc.collect()  # collect garbage of the imports before the timed part
        cpu_start_s = cpu_seconds()
        start_s = time.perf_counter()
        if case.method == "imap":
            results = _consume(methods.imap(case.function, items, case.chunksize))
        elif case.method == "map":
            results = methods.map_all(case.function, items, case.chunksize)
        elif case.method == "map partial":
            results = methods.map_partial(case.function, large, items)
        elif out is not None:
            methods.fill_tensor(case.function, out)
            results = out
        else:
            results = methods.starmap_large(case.function, large, items)
        seconds = time.perf_counter() - start_s
        cpu_time_s = cpu_seconds() - cpu_start_s
        _check(case, contender, results, large, items)
    return PoolRun(
        case=case.name,
        contender=contender.name,
        seconds=seconds,
        cpu_seconds=cpu_time_s,
        results=len(results),
    )


def _run_start(case: PoolCase, contender: PoolContender, processes: int) -> PoolRun:
    """Time a pool from its constructor to the first result."""
    if case.method == "start after threads":
        torch.set_num_threads(2)
        matrix = torch.ones(1024, 1024)
        torch.mm(matrix, matrix)
    gc.collect()
    start_s = time.perf_counter()
    with contender.open_pool(processes, None) as methods:
        results = methods.map_all(case.function, [16], None)
        seconds = time.perf_counter() - start_s
        _check(case, contender, results, None, [16])
    return PoolRun(
        case=case.name, contender=contender.name, seconds=seconds, cpu_seconds=None, results=1
    )


def _warm_up(
    case: PoolCase, contender: PoolContender, methods: PoolMethods, large: Any, processes: int
) -> None:
    """Run a few tasks, so that every worker has started, and verify their results."""
    items = _items(case, 4 * processes, max_bytes=4096)
    results: Any
    if case.warm_up_function is not None:
        case = case.replace(function=case.warm_up_function)
    if case.method == "fill":
        results = torch.zeros(len(items), tasks.WIDTH, dtype=torch.uint8)
        methods.fill_tensor(case.function, results)
    elif large is None:
        results = list(methods.imap(case.function, items, 1))
    else:  # with a small argument, as sending the large one is timed
        large = large if contender.is_argument_in_constructor else large[:4096].clone()
        results = methods.map_partial(case.function, large, items)
    _check(case, contender, results, large, items)


def _items(case: PoolCase, num_tasks: int, max_bytes: int = 1 << 62) -> Sequence[Any]:
    """Return the tasks' arguments: arrays of at most `max_bytes` bytes, or numbers."""
    if not case.array_bytes:
        return range(num_tasks)
    num_elements = min(case.array_bytes, max_bytes) // 8
    return [np.full(num_elements, index, np.int64) for index in range(num_tasks)]


def _consume(results: Iterable[Any]) -> list[Any]:
    """Consume an iterator, keeping only the first and last element of each tensor."""
    return [
        (result[0].item(), result[-1].item()) if isinstance(result, torch.Tensor) else result
        for result in results
    ]


def _check(
    case: PoolCase,
    contender: PoolContender,
    results: Sequence[Any],
    large: Any,
    items: Sequence[Any],
) -> None:
    """Raise unless the results equal those of the function called without a pool."""
    function = case.function if large is None else partial(case.function, large)
    if case.method == "fill":
        function = partial(_filled_row, case.function)
    if len(results) != len(items):
        raise _wrong_result_error(case, contender, f"{len(items)} results", str(len(results)))
    for result, item in zip(results, items, strict=True):
        expected = function(item)
        if isinstance(expected, np.ndarray):
            is_correct = np.array_equal(result, expected)
        elif isinstance(result, torch.Tensor):
            is_correct = torch.equal(result, expected)
        elif isinstance(expected, torch.Tensor):
            is_correct = result == (expected[0].item(), expected[-1].item())
        else:
            is_correct = result == expected
        if not is_correct:
            raise _wrong_result_error(case, contender, f"{expected} for {item}", str(result))


def _filled_row(write_rows: Any, index: int) -> torch.Tensor:
    return tasks.filled_rows(write_rows, range(index, index + 1))[0]


def _wrong_result_error(
    case: PoolCase, contender: PoolContender, expected: str, actual: str
) -> CputrainError:
    return CputrainError(
        f"the results of {contender.name!r} in {case.name}",
        f"must be the function's: {expected}",
        found=actual,
        do="A pool that returns other results cannot be compared; please report it.",
    )


def cpu_seconds() -> float:
    """Return the CPU time of this process and all its descendants."""
    _, _, user, system, _ = os.times()  # reaped children
    cpu_time_s = time.process_time() + user + system
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:  # the process has exited
            continue
        cpu_time_s += times.user + times.system
    return cpu_time_s


def _allow_open_files() -> None:
    """Raise the limit on open files: torch's pool needs a descriptor for each live tensor."""
    try:
        import resource
    except ImportError:  # not available on Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
