"""One loader run once: its time, its CPU time, and whether its batches are right."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from cputrain.bench.loaders.comparison import SAMPLES_ALONE
from cputrain.bench.tree_memory import own_bytes
from cputrain.record import Record

if TYPE_CHECKING:
    from cputrain.bench.loaders.cases import Case
    from cputrain.bench.loaders.contenders import Contender

Sums = tuple[float, ...]


class Run(Record):
    """What a loader did once."""

    case: str
    contender: str
    round_number: int

    seconds: float
    """From `iter()` to the last batch, or from making the loader to its first batch."""

    cpu_seconds: float | None
    """In this process and in those it started, until they had ended; None for a first batch."""

    batches: int
    """How many there were in an epoch."""

    last: Sums
    """The sums of the last batch."""


def run(case: Case, contender: Contender, data: Any, number: int) -> Run:
    """Iterate, as often as the case says."""
    seconds = used = 0.0
    for _ in range(case.times):
        made = time.perf_counter()
        with contender.loader(case, data) as loader:
            if case.timed == "second epoch":
                for _ in loader:
                    pass
            cpu = cpu_seconds()
            # for a first batch one also waits while a loader prepares its workers' data
            begin = made if case.timed == "first batch" else time.perf_counter()
            iterator = iter(loader)
            batch, batches = next(iterator), 1
            if case.timed != "first batch":
                for batch in iterator:  # noqa: B007  (the last one is looked at afterwards)
                    batches += 1
            seconds += time.perf_counter() - begin
            if hasattr(iterator, "close"):
                iterator.close()
            del iterator  # its workers end here at the latest
            multiprocessing.active_children()  # which collects those that have ended
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
    """The sums of each batch of an epoch, in order; this also warms the loader up."""
    with contender.loader(case, data) as loader:
        return [sums(batch) for batch in loader]


def worker_bytes(case: Case, contender: Contender, data: Any) -> int:
    """Return the memory of its own that the largest worker has at the end of an epoch."""
    most, last = 0, case.num_batches(data)
    with contender.loader(case, data) as loader:
        for number, _ in enumerate(loader, 1):
            if number == last:
                most = max(map(own_bytes, _children()), default=0)
    return most


def _children() -> list[str]:
    """Return the processes that this one has started, and that still run."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return file.read().split()


def sums(batch: Any) -> Sums:
    """The sum of each tensor of a batch, and the numbers in a sample that is not collated."""
    parts = batch if isinstance(batch, (list, tuple)) else [batch]
    return tuple(torch.as_tensor(part).sum(dtype=torch.float64).item() for part in parts)


def samples_alone(case: Case, data: Any, number: int) -> Run:
    """Every sample made once, by as many processes as loaders have workers; none is handed over."""
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
    torch.set_num_threads(1)  # as in a loader's worker
    for begin in range(first * batch, len(data), step * batch):
        [data[row] for row in range(begin, min(begin + batch, len(data)))]


def cpu_seconds() -> float:
    """What this process and its ended children have used."""
    if sys.platform == "win32":  # which tells nothing of children
        return time.process_time()
    import resource

    spent = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in spent)
