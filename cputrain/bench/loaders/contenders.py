"""Data loaders that are compared; all take the samples in the same order.

To add a loader, write a context manager that yields it for a case and its dataset, and add a line
to `CONTENDERS`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from cputrain.bench.loaders.cases import SEED, Case
from cputrain.data import DataLoader
from cputrain.record import Record

Batches = Iterable[Any]


class Contender(Record):
    """Data loader, and the cases in which it can run."""

    name: str
    """Name in tables."""

    loader: Callable[[Case, Any], AbstractContextManager[Batches]]
    """Context manager that yields a new loader; its construction is not timed, iterating is."""

    why_not: Callable[[Case, Any], str]
    """Return why the loader cannot run a case; empty if it can."""


def _order(case: Case, data: Any) -> Sampler[int]:
    if not case.is_shuffled:
        return SequentialSampler(data)
    return RandomSampler(data, generator=torch.Generator().manual_seed(SEED))


def _arguments(case: Case, data: Any) -> dict[str, Any]:
    return {
        "batch_size": case.batch,
        "sampler": _order(case, data),
        "num_workers": case.workers,
        "multiprocessing_context": case.start_method if case.workers else None,
    }


@contextmanager
def _torch(case: Case, data: Any) -> Iterator[Batches]:
    yield torch.utils.data.DataLoader(data, **_arguments(case, data))


@contextmanager
def _cputrain(case: Case, data: Any) -> Iterator[Batches]:
    yield DataLoader(data, cache="memory" if case.cache else None, **_arguments(case, data))


@contextmanager
def _spdl(case: Case, data: Any) -> Iterator[Batches]:
    """Yield SPDL's replacement for torch's DataLoader, with worker processes."""
    from spdl.dataloader import get_pytorch_dataloader

    loader = get_pytorch_dataloader(data, in_order=True, **_arguments(case, data))
    try:
        yield loader
    finally:  # the loader holds a copy of the data in named shared memory until the process exits
        memory = getattr(loader, "_shmem", None)
        if memory is not None:
            memory.close()
            memory.unlink()


def _why_not_spdl(case: Case, data: Any) -> str:
    if reason := _spdl_is_missing():
        return reason
    if case.workers == 0:
        return "without workers it starts one all the same"
    if case.batch is None:
        return "it has batches only"
    if case.empty:
        return "its workers are not children of the process, whose memory is looked at"
    if isinstance(data, TensorDataset) and os.path.isdir("/dev/shm"):
        wanted = sum(tensor.nbytes for tensor in data.tensors)
        free = shutil.disk_usage("/dev/shm").free
        if free < 1.25 * wanted:  # its copy of the data, and space for batches
            return f"it copies the data to /dev/shm, and {free >> 20} MiB there are too few"
    return ""


@contextmanager
def _spdl_threads(case: Case, data: Any) -> Iterator[Batches]:
    """Yield SPDL's thread-based pipeline, its main interface."""
    from spdl.pipeline import PipelineBuilder

    def fetch(rows: list[int]) -> Any:
        return default_collate([data[row] for row in rows])

    threads = max(1, case.workers)

    def batches() -> Iterator[Any]:
        pipeline = (
            PipelineBuilder()
            .add_source(BatchSampler(_order(case, data), case.batch or 1, drop_last=False))
            .pipe(fetch, concurrency=threads, output_order="input")
            .add_sink(2 * threads)
            .build(num_threads=threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    yield batches()


def _why_not_spdl_threads(case: Case, _data: Any) -> str:
    if reason := _spdl_is_missing():
        return reason
    return _why_not_by_hand(case, _data)


@contextmanager
def _by_hand(case: Case, data: Any) -> Iterator[Batches]:
    def batches() -> Iterator[Any]:
        order: Any = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))
        for rows in order.split(case.batch):
            if isinstance(data, TensorDataset):
                yield [tensor.index_select(0, rows) for tensor in data.tensors]
            else:
                yield default_collate([data[row] for row in rows.tolist()])

    yield batches()


def _why_not_by_hand(case: Case, _data: Any) -> str:
    if case.batch is None:
        return "it has batches only"
    if case.timed == "second epoch":
        return "its epochs are alike"
    # without worker processes, first-batch latency and worker memory mean nothing
    return "it starts no processes" if case.timed == "first batch" or case.empty else ""


def _always(_case: Case, _data: Any) -> str:
    return ""


@cache
def _spdl_is_missing() -> str:
    """Return why SPDL cannot be imported; importing it here keeps the import out of timed runs."""
    if find_spec("spdl") is None:
        return "it is not installed: pip install spdl"
    try:
        import spdl.dataloader
        import spdl.pipeline  # noqa: F401
    except ImportError as error:
        return f"it cannot be imported: {error}"
    return ""


CONTENDERS = (
    Contender(name="torch", loader=_torch, why_not=_always),
    Contender(name="cputrain", loader=_cputrain, why_not=_always),
    Contender(name="spdl", loader=_spdl, why_not=_why_not_spdl),
    Contender(name="spdl threads", loader=_spdl_threads, why_not=_why_not_spdl_threads),
    Contender(name="by hand", loader=_by_hand, why_not=_why_not_by_hand),
)
