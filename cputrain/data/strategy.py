"""The choice of an iterator for a loader: gather from memory, load in process, or use workers."""

from __future__ import annotations

import os
import sys
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import collate
from torch.utils.data.dataloader import _DatasetKind

from cputrain.counting import counted
from cputrain.data.columns import can_gather_every_part, columns_of
from cputrain.data.memory import MemoryIterator, MemoryWorkersIterator, has_default_collation
from cputrain.data.messages import say
from cputrain.data.process import ProcessIterator
from cputrain.data.resume import LoaderProxy, ResumedSampler
from cputrain.data.statistics import Statistics
from cputrain.data.torch_step import has_torch_mode
from cputrain.runtime.common_data import share_with_jobs

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from cputrain.data.cache import SampleCache
    from cputrain.data.cached_dataset import CachedDataset
    from cputrain.data.columns import Columns
    from cputrain.data.resume import Position


def iterator_of(loader: Any, *, resume: Position | None = None) -> _BaseDataLoaderIter:
    """Return the fastest iterator that yields the same batches as torch's.

    Args:
        loader: A DataLoader of torch, or of this package.
        resume: Where in an epoch to start; the batches before this position are not yielded again.
    """
    if resume is None:
        return _create_iterator(loader, statistics_of(loader))
    state = torch.get_rng_state()
    torch.set_rng_state(resume.torch_state)
    try:
        if loader._dataset_kind == _DatasetKind.Map:
            return _resume_map_style(loader, resume)
        return _resume_iterable(loader, resume)
    finally:
        torch.set_rng_state(state)  # resuming does not change the script's random numbers


def _resume_map_style(loader: Any, position: Position) -> _BaseDataLoaderIter:
    """Return an iterator whose sampler skips the rows of the batches before `position`."""
    sampler = ResumedSampler(loader, position)
    iterator = _create_iterator(LoaderProxy(loader, _index_sampler=sampler), statistics_of(loader))
    if not loader.num_workers:  # with workers, the constructor has drawn the first rows
        iterator.draw_first()
    iterator._index_sampler = loader._index_sampler
    iterator._num_yielded = position.num_batches
    return iterator


def _resume_iterable(loader: Any, position: Position) -> _BaseDataLoaderIter:
    """Restore the dataset's state if it has one; otherwise load and discard the first batches."""
    statistics = statistics_of(loader)
    if position.dataset_state is not None:
        loader.dataset.load_state_dict(position.dataset_state)
        iterator = _create_iterator(loader, statistics)
        iterator._num_yielded = position.num_batches
        return iterator
    iterator = _create_iterator(loader, statistics)
    for _ in islice(iterator, position.num_batches):
        pass
    statistics.notes.append(
        f"to resume, {counted(position.num_batches, 'batch', 'batches')} of an iterable dataset "
        f"{'was' if position.num_batches == 1 else 'were'} loaded again and discarded; a dataset "
        "with state_dict and load_state_dict resumes directly if num_workers is 0"
    )
    return iterator


def _create_iterator(loader: Any, statistics: Statistics) -> Any:
    """Create the iterator of an epoch, and record which one and why."""
    statistics.epochs += 1
    share_with_jobs(loader.dataset)
    columns = columns_of_loader(loader)
    if columns is not None:
        statistics.path, statistics.workers = "memory", 0
        statistics.reason = "the data is in memory, and rows are gathered in one call"
        statistics.spared = loader.num_workers
        if getattr(loader, "_cache", None) is not None and _NO_CACHE_NOTE not in statistics.notes:
            statistics.notes.append(_NO_CACHE_NOTE)
        if not loader.num_workers:
            return MemoryIterator(loader, columns, statistics)
        statistics.reason += f"; {counted(loader.num_workers, 'worker')} would only make it slower"
        say(
            "the data of a DataLoader is in memory: its batches are gathered in this process, "
            f"and no worker is started, where it asks for {loader.num_workers}"
        )
        return MemoryWorkersIterator(loader, statistics)
    if loader.num_workers == 0:
        statistics.path, statistics.workers = "process", 0
        statistics.reason = "num_workers is 0"
        return ProcessIterator(loader, statistics, _cached_dataset(loader, statistics))
    from cputrain.data.workers import WorkersIterator

    statistics.path, statistics.workers = "workers", loader.num_workers
    statistics.reason = f"num_workers is {loader.num_workers}"
    # torch's own DataLoader has no attributes that allow these two optimizations
    return WorkersIterator(
        loader,
        statistics,
        can_prefetch_epochs=getattr(loader, "begins_early", False),
        sharing=loader._sharing if getattr(loader, "shares_samples", False) else None,
        cached=_cached_dataset(loader, statistics),
    )


_NO_CACHE_NOTE = "the samples need no cache: the data is in memory"


def _cached_dataset(loader: Any, statistics: Statistics) -> CachedDataset | None:
    """Return the dataset that reads and writes the loader's cache; None without a cache."""
    cache: SampleCache | None = getattr(loader, "_cache", None)
    return None if cache is None else cache.dataset_for(loader, statistics.notes)


def is_over(iterator: Any) -> bool:
    """Return whether an iterator of this package has raised StopIteration."""
    return bool(getattr(iterator, "is_over", False))


def statistics_of(loader: DataLoader[Any]) -> Statistics:
    """Return the statistics of a loader; they are created at the first call.

    They are not an attribute of the loader: a script may pickle loaders and read them where
    cputrain is not installed, and a subclass may compare loaders or reject attributes.
    """
    key = id(loader)
    record = _records.get(key)
    if record is not None and record[0]() is loader:
        return record[1]

    def forget(reference: weakref.ref[Any]) -> None:
        if key in _records and _records[key][0] is reference:
            del _records[key]

    statistics = Statistics()
    _records[key] = weakref.ref(loader, forget), statistics
    return statistics


_records: dict[int, tuple[weakref.ref[Any], Statistics]] = {}
"""A weak reference to each loader and its statistics, by the loader's `id`."""


def unsupported_reason() -> str:
    """Return why this system cannot use this package's iterators; empty if it can."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return "shared memory by memfd_create needs Linux"
    return ""


def columns_of_loader(loader: DataLoader[Any]) -> Columns | None:
    """Return the dataset's columns if a gather gives torch's batches; None otherwise."""
    if (
        loader._dataset_kind != _DatasetKind.Map
        or not loader._auto_collation
        or loader.collate_fn is not collate.default_collate
        or (loader.num_workers and not _can_omit_workers(loader))
        or (not loader.num_workers and loader.timeout)
        or torch.utils.data.get_worker_info() is not None
        or not has_default_collation()
    ):
        return None
    columns = columns_of(loader.dataset, with_lists=loader.num_workers > 0)
    if columns is None or (loader.num_workers and not can_gather_every_part(loader.dataset)):
        return None
    return columns


def _can_omit_workers(loader: Any) -> bool:
    """Return whether workers would have no effect except producing batches."""
    return (
        bool(loader.prefetch_factor)
        and _is_seeding_only(loader.worker_init_fn)
        and not has_torch_mode()
    )


_SEEDING_FUNCTIONS = {
    ("lightning_fabric", "pl_worker_init_function"),
    ("lightning", "pl_worker_init_function"),
    ("transformers", "seed_worker"),
}


def _is_seeding_only(worker_init_fn: Any) -> bool:
    """Return whether a worker_init_fn only seeds generators, which a gather does not use."""
    function = getattr(worker_init_fn, "func", worker_init_fn)  # of a partial
    root = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", "")
    return function is None or (root.partition(".")[0], name) in _SEEDING_FUNCTIONS
