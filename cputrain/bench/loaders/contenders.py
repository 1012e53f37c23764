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

from cputrain.bench.loaders.cases import SEED, LoaderCase
from cputrain.data import DataLoader
from cputrain.record import Record

Batches = Iterable[Any]


class LoaderContender(Record):
    """Data loader that is compared, and the cases in which it can run."""

    name: str
    """Name in tables."""

    open_loader: Callable[[LoaderCase, Any], AbstractContextManager[Batches]]
    """Context manager that yields a new loader.

    Iterating over the loader is timed, constructing it only where the first batch is timed.
    """

    why_not: Callable[[LoaderCase, Any], str]
    """Return why the loader cannot run a case; empty if it can."""


def _sampler(case: LoaderCase, data: Any) -> Sampler[int]:
    """Return the sampler whose order all loaders follow."""
    if not case.is_shuffled:
        return SequentialSampler(data)
    return RandomSampler(data, generator=torch.Generator().manual_seed(SEED))


def _loader_kwargs(case: LoaderCase, data: Any) -> dict[str, Any]:
    return {
        "batch_size": case.batch_size,
        "sampler": _sampler(case, data),
        "num_workers": case.num_workers,
        "multiprocessing_context": case.start_method if case.num_workers else None,
    }


@contextmanager
def _torch(case: LoaderCase, data: Any) -> Iterator[Batches]:
    yield torch.utils.data.DataLoader(data, **_loader_kwargs(case, data))


@contextmanager
def _cputrain(case: LoaderCase, data: Any) -> Iterator[Batches]:
    yield DataLoader(data, cache="memory" if case.has_cache else None, **_loader_kwargs(case, data))


@contextmanager
def _spdl(case: LoaderCase, data: Any) -> Iterator[Batches]:
    """Yield SPDL's replacement for torch's DataLoader, with worker processes."""
    from spdl.dataloader import get_pytorch_dataloader

    loader = get_pytorch_dataloader(data, in_order=True, **_loader_kwargs(case, data))
    try:
        yield loader
    finally:  # the loader holds a copy of the data in named shared memory until the process exits
        shared_memory = getattr(loader, "_shmem", None)
        if shared_memory is not None:
            shared_memory.close()
            shared_memory.unlink()


def _why_not_spdl(case: LoaderCase, data: Any) -> str:
    if reason := _why_no_spdl():
        return reason
    if case.num_workers == 0:
        return "it starts a worker process even without workers"
    if case.batch_size is None:
        return "it yields batches only"
    if case.empty_dataset:
        return "its workers are not child processes, whose memory is measured"
    if isinstance(data, TensorDataset) and os.path.isdir("/dev/shm"):
        required_bytes = sum(tensor.nbytes for tensor in data.tensors)
        free_bytes = shutil.disk_usage("/dev/shm").free
        if free_bytes < 1.25 * required_bytes:  # its copy of the data, and space for batches
            return f"it copies the data to /dev/shm, where only {free_bytes >> 20} MiB are free"
    return ""


@contextmanager
def _spdl_threads(case: LoaderCase, data: Any) -> Iterator[Batches]:
    """Yield SPDL's thread-based pipeline, its main interface."""
    from spdl.pipeline import PipelineBuilder

    def collate_rows(indices: list[int]) -> Any:
        return default_collate([data[index] for index in indices])

    num_threads = max(1, case.num_workers)

    def batches() -> Iterator[Any]:
        pipeline = (
            PipelineBuilder()
            .add_source(BatchSampler(_sampler(case, data), case.batch_size or 1, drop_last=False))
            .pipe(collate_rows, concurrency=num_threads, output_order="input")
            .add_sink(2 * num_threads)
            .build(num_threads=num_threads)
        )
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    yield batches()


def _why_not_spdl_threads(case: LoaderCase, _data: Any) -> str:
    if reason := _why_no_spdl():
        return reason
    return _why_not_plain_loop(case, _data)


@contextmanager
def _plain_loop(case: LoaderCase, data: Any) -> Iterator[Batches]:
    """Yield a generator that indexes and collates in this process, in `RandomSampler`'s order."""

    def batches() -> Iterator[Any]:
        order: Any = torch.randperm(len(data), generator=torch.Generator().manual_seed(SEED))
        for indices in order.split(case.batch_size):
            if isinstance(data, TensorDataset):
                yield [tensor.index_select(0, indices) for tensor in data.tensors]
            else:
                yield default_collate([data[index] for index in indices.tolist()])

    yield batches()


def _why_not_plain_loop(case: LoaderCase, _data: Any) -> str:
    if case.batch_size is None:
        return "it yields batches only"
    if case.timed == "second epoch":
        return "its second epoch does the same as its first"
    # without worker processes, first-batch latency and worker memory mean nothing
    return "it has no worker processes" if case.timed == "first batch" or case.empty_dataset else ""


def _runs_every_case(_case: LoaderCase, _data: Any) -> str:
    return ""


@cache
def _why_no_spdl() -> str:
    """Return why SPDL cannot be imported, empty if it can.

    SPDL is imported here so that no timed run imports it.
    """
    if find_spec("spdl") is None:
        return "it is not installed: pip install spdl"
    try:
        import spdl.dataloader
        import spdl.pipeline  # noqa: F401
    except ImportError as error:
        return f"it cannot be imported: {error}"
    return ""


CONTENDERS = (
    LoaderContender(name="torch", open_loader=_torch, why_not=_runs_every_case),
    LoaderContender(name="cputrain", open_loader=_cputrain, why_not=_runs_every_case),
    LoaderContender(name="spdl", open_loader=_spdl, why_not=_why_not_spdl),
    LoaderContender(name="spdl threads", open_loader=_spdl_threads, why_not=_why_not_spdl_threads),
    LoaderContender(name="by hand", open_loader=_plain_loop, why_not=_why_not_plain_loop),
)
