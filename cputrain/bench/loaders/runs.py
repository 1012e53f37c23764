"""Run one loader once and measure wall time, CPU time, worker memory and sums of its batches."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from cputrain.bench.loaders.comparison import SAMPLES_ALONE
from cputrain.bench.tree_memory import private_bytes
from cputrain.record import Record

if TYPE_CHECKING:
    from cputrain.bench.loaders.cases import LoaderCase
    from cputrain.bench.loaders.contenders import LoaderContender

Sums = tuple[float, ...]


class LoaderRun(Record):
    """Measurements of one run of a loader."""

    case: str
    """Name of the case."""

    contender: str
    """Name of the loader, or `SAMPLES_ALONE`."""

    round_number: int
    """Number of the round, counted from 1."""

    seconds: float
    """Time from `iter()` to the last batch, or from construction to the first batch."""

    cpu_seconds: float | None
    """CPU time of this process and its workers until their exit; None for a first batch."""

    batches: int
    """Number of batches in an epoch."""

    last: Sums
    """Sum of each tensor of the last batch."""


def run(case: LoaderCase, contender: LoaderContender, data: Any, round_number: int) -> LoaderRun:
    """Iterate over the loader `case.num_repeats` times and return the measurements."""
    seconds = cpu_time_s = 0.0
    for _ in range(case.num_repeats):
        created_at = time.perf_counter()
        with contender.open_loader(case, data) as loader:
            if case.timed == "second epoch":
                for _ in loader:
                    pass
            cpu_start_s = cpu_seconds()
            # first-batch latency includes constructing the loader
            start = created_at if case.timed == "first batch" else time.perf_counter()
            iterator = iter(loader)
            batch, batches = next(iterator), 1
            if case.timed != "first batch":
                for batch in iterator:  # noqa: B007  (the last batch is used below)
                    batches += 1
            seconds += time.perf_counter() - start
            if hasattr(iterator, "close"):
                iterator.close()
            del iterator  # workers are shut down here at the latest
            multiprocessing.active_children()  # reaps exited workers
            cpu_time_s += cpu_seconds() - cpu_start_s
    return LoaderRun(
        case=case.name,
        contender=contender.name,
        round_number=round_number,
        seconds=seconds,
        cpu_seconds=None if case.timed == "first batch" else cpu_time_s,
        batches=batches,
        last=tensor_sums(batch),
    )


def batch_sums(case: LoaderCase, contender: LoaderContender, data: Any) -> list[Sums]:
    """Return the sums of each batch of an epoch, in order; also serves as warm-up."""
    with contender.open_loader(case, data) as loader:
        return [tensor_sums(batch) for batch in loader]


def worker_bytes(case: LoaderCase, contender: LoaderContender, data: Any) -> int:
    """Return the private memory of the largest worker at the end of an epoch, in bytes."""
    max_bytes, num_batches = 0, case.num_batches(data)
    with contender.open_loader(case, data) as loader:
        for batch_number, _ in enumerate(loader, 1):
            if batch_number == num_batches:
                max_bytes = max(map(private_bytes, _children()), default=0)
    return max_bytes


def _children() -> list[str]:
    """Return the process ids of live child processes."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


def tensor_sums(batch: Any) -> Sums:
    """Return the sum of each tensor of a batch, or of each value of an uncollated sample."""
    values = batch if isinstance(batch, (list, tuple)) else [batch]
    return tuple(torch.as_tensor(value).sum(dtype=torch.float64).item() for value in values)


def run_samples_alone(case: LoaderCase, data: Any, round_number: int) -> LoaderRun:
    """Create every sample once in `num_workers` processes, without sending it to this process."""
    processes = [
        multiprocessing.Process(
            target=_create_samples, args=(data, case.batch_size, first, case.num_workers)
        )
        for first in range(case.num_workers)
    ]
    cpu_start_s = cpu_seconds()
    start = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - start
    return LoaderRun(
        case=case.name,
        contender=SAMPLES_ALONE,
        round_number=round_number,
        seconds=seconds,
        cpu_seconds=cpu_seconds() - cpu_start_s,
        batches=case.num_batches(data),
        last=(),
    )


def _create_samples(data: Any, batch_size: int, first: int, step: int) -> None:
    """Create the samples of every `step`-th batch, from batch `first` on."""
    torch.set_num_threads(1)  # as in a loader worker
    for start in range(first * batch_size, len(data), step * batch_size):
        [data[index] for index in range(start, min(start + batch_size, len(data)))]


def cpu_seconds() -> float:
    """Return the CPU time of this process and its reaped children."""
    if sys.platform == "win32":  # no resource usage of children there
        return time.process_time()
    import resource

    usages = (
        resource.getrusage(target) for target in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)
