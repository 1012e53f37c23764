"""Run one loader once: wall time, CPU time, and sums of its batches for verification."""

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
    from cputrain.bench.loaders.cases import Case
    from cputrain.bench.loaders.contenders import Contender

Sums = tuple[float, ...]


class Run(Record):
    """Measurements of one run of a loader."""

    case: str
    contender: str
    round_number: int

    seconds: float
    """Time from `iter()` to the last batch, or from construction to the first batch."""

    cpu_seconds: float | None
    """CPU time of this process and its workers until their exit; None for a first batch."""

    batches: int
    """Number of batches in an epoch."""

    last: Sums
    """Sums over the last batch."""


def run(case: Case, contender: Contender, data: Any, number: int) -> Run:
    """Iterate over the loader `case.times` times and return the measurements."""
    seconds = used = 0.0
    for _ in range(case.times):
        made = time.perf_counter()
        with contender.loader(case, data) as loader:
            if case.timed == "second epoch":
                for _ in loader:
                    pass
            cpu = cpu_seconds()
            # first-batch latency includes constructing the loader
            begin = made if case.timed == "first batch" else time.perf_counter()
            iterator = iter(loader)
            batch, batches = next(iterator), 1
            if case.timed != "first batch":
                for batch in iterator:  # noqa: B007  (the last one is looked at afterwards)
                    batches += 1
            seconds += time.perf_counter() - begin
            if hasattr(iterator, "close"):
                iterator.close()
            del iterator  # workers are shut down here at the latest
            multiprocessing.active_children()  # reaps exited workers
            used += cpu_seconds() - cpu
    return Run(
        case=case.name,
        contender=contender.name,
        round_number=number,
        seconds=seconds,
        cpu_seconds=None if case.timed == "first batch" else used,
        batches=batches,
        last=sums(batch),
    )


def every_sum(case: Case, contender: Contender, data: Any) -> list[Sums]:
    """Return the sums of each batch of an epoch, in order; also serves as warm-up."""
    with contender.loader(case, data) as loader:
        return [sums(batch) for batch in loader]


def worker_bytes(case: Case, contender: Contender, data: Any) -> int:
    """Return the private memory of the largest worker at the end of an epoch, in bytes."""
    most, last = 0, case.num_batches(data)
    with contender.loader(case, data) as loader:
        for number, _ in enumerate(loader, 1):
            if number == last:
                most = max(map(private_bytes, _children()), default=0)
    return most


def _children() -> list[str]:
    """Return the process ids of live child processes."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


def sums(batch: Any) -> Sums:
    """Return the sum of each tensor of a batch, or of each value of an uncollated sample."""
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    return tuple(torch.as_tensor(part).sum(dtype=torch.float64).item() for part in parts)


def samples_alone(case: Case, data: Any, number: int) -> Run:
    """Create every sample once in as many processes as loaders have workers, without transfer."""
    processes = [
        multiprocessing.Process(target=_make, args=(data, case.batch, first, case.workers))
        for first in range(case.workers)
    ]
    cpu = cpu_seconds()
    begin = time.perf_counter()
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    seconds = time.perf_counter() - begin
    return Run(
        case=case.name,
        contender=SAMPLES_ALONE,
        round_number=number,
        seconds=seconds,
        cpu_seconds=cpu_seconds() - cpu,
        batches=case.num_batches(data),
        last=(),
    )


def _make(data: Any, batch: int, first: int, step: int) -> None:
    torch.set_num_threads(1)  # as in a loader worker
    for begin in range(first * batch, len(data), step * batch):
        [data[row] for row in range(begin, min(begin + batch, len(data)))]


def cpu_seconds() -> float:
    """Return the CPU time of this process and its reaped children."""
    if sys.platform == "win32":  # no resource usage of children there
        return time.process_time()
    import resource

    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in spent)
