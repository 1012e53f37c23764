"""Which way a loader's batches are made."""

from __future__ import annotations

import os
import sys
import weakref
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import collate
from torch.utils.data.dataloader import _DatasetKind

from cputrain.data.columns import columns_of, is_gathered_throughout
from cputrain.data.memory import MemoryIterator, MemoryWorkersIterator, collates_as_torch
from cputrain.data.messages import say
from cputrain.data.process import ProcessIterator
from cputrain.data.resume import ResumedSampler, StandIn
from cputrain.data.statistics import Statistics
from cputrain.data.torch_step import is_watched

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from cputrain.data.cache import SampleCache
    from cputrain.data.cached_dataset import CachedDataset
    from cputrain.data.columns import Columns
    from cputrain.data.resume import Position


def iterator_of(loader: Any, *, resume: Position | None = None) -> _BaseDataLoaderIter:
    """An iterator over the loader's batches, made the fastest way that gives torch's batches.

    With a position to resume at, what was handed out before it is not made again.
    """
    if resume is None:
        return _begin(loader, statistics_of(loader))
    state = torch.get_rng_state()
    torch.set_rng_state(resume.random)
    try:
        if loader._dataset_kind == _DatasetKind.Map:
            return _resumed(loader, resume)
        return _replayed(loader, resume)
    finally:
        torch.set_rng_state(state)  # the script's own random numbers go on as they were


def _resumed(loader: Any, position: Position) -> _BaseDataLoaderIter:
    sampler = ResumedSampler(loader, position)
    iterator = _begin(StandIn(loader, _index_sampler=sampler), statistics_of(loader))
    if not loader.num_workers:  # workers have been sent their first rows; here they are drawn now
        iterator.draw_first()
    iterator._index_sampler = loader._index_sampler
    iterator._num_yielded = position.batches
    return iterator


def _replayed(loader: Any, position: Position) -> _BaseDataLoaderIter:
    statistics = statistics_of(loader)
    if position.dataset is not None:
        loader.dataset.load_state_dict(position.dataset)
        iterator = _begin(loader, statistics)
        iterator._num_yielded = position.batches
        return iterator
    iterator = _begin(loader, statistics)
    for _ in islice(iterator, position.batches):
        pass
    statistics.notes.append(
        f"{position.batches} batches of an iterable dataset were made again to resume after them; "
        "a dataset with state_dict and load_state_dict goes on at once, without workers"
    )
    return iterator


def _begin(loader: Any, statistics: Statistics) -> Any:
    statistics.epochs += 1
    columns = columns_of_loader(loader)
    if columns is not None:
        statistics.path, statistics.workers = "memory", 0
        statistics.reason = "the data is in memory, and rows are gathered in one call"
        statistics.spared = loader.num_workers
        if getattr(loader, "_cache", None) is not None and _NEEDS_NONE not in statistics.notes:
            statistics.notes.append(_NEEDS_NONE)
        if not loader.num_workers:
            return MemoryIterator(loader, columns, statistics)
        statistics.reason += f"; {loader.num_workers} workers would only make it slower"
        say(
            "the data of a DataLoader is in memory: its batches are gathered in this process, "
            f"and the {loader.num_workers} workers it asks for are not started"
        )
        return MemoryWorkersIterator(loader, statistics)
    if loader.num_workers == 0:
        statistics.path, statistics.workers = "process", 0
        statistics.reason = "num_workers is 0"
        return ProcessIterator(loader, statistics, _cached(loader, statistics))
    from cputrain.data.workers import WorkersIterator

    statistics.path, statistics.workers = "workers", loader.num_workers
    statistics.reason = f"num_workers is {loader.num_workers}"
    # a script that does not know of them has no way to say that it minds
    return WorkersIterator(
        loader,
        statistics,
        looks_ahead=getattr(loader, "begins_early", False),
        sharing=loader._sharing if getattr(loader, "shares_samples", False) else None,
        cached=_cached(loader, statistics),
    )


_NEEDS_NONE = "the samples need no cache: the data is in memory"


def _cached(loader: Any, statistics: Statistics) -> CachedDataset | None:
    cache: SampleCache | None = getattr(loader, "_cache", None)
    return None if cache is None else cache.dataset_for(loader, statistics.notes)


def is_over(iterator: Any) -> bool:
    """Whether it has handed out its last batch, and said so."""
    return bool(getattr(iterator, "is_over", False))


def statistics_of(loader: DataLoader[Any]) -> Statistics:
    """Return the loader's record.

    It is no attribute of the loader: what a script pickles is read where cputrain is not installed,
    and a class of the script's may compare loaders, or refuse attributes.
    """
    key = id(loader)
    known = _records.get(key)
    if known is not None and known[0]() is loader:
        return known[1]

    def forget(reference: weakref.ref[Any]) -> None:
        if key in _records and _records[key][0] is reference:
            del _records[key]

    statistics = Statistics()
    _records[key] = weakref.ref(loader, forget), statistics
    return statistics


_records: dict[int, tuple[weakref.ref[Any], Statistics]] = {}
"""Of every loader there is, by its identity."""


def why_not() -> str:
    """Why loaders are left to torch on this system; nothing if they are not."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return "shared memory without a name needs Linux"
    return ""


def columns_of_loader(loader: DataLoader[Any]) -> Columns | None:
    """Return the dataset's columns, where gathering them is all that torch would do."""
    if (
        loader._dataset_kind != _DatasetKind.Map
        or not loader._auto_collation
        or loader.collate_fn is not collate.default_collate
        or (loader.num_workers and not _may_spare_workers(loader))
        or (not loader.num_workers and loader.timeout)
        or torch.utils.data.get_worker_info() is not None
        or not collates_as_torch()
    ):
        return None
    columns = columns_of(loader.dataset, with_lists=loader.num_workers > 0)
    if columns is None or (loader.num_workers and not is_gathered_throughout(loader.dataset)):
        return None
    return columns


def _may_spare_workers(loader: Any) -> bool:
    """Return whether workers would do nothing but make batches."""
    return bool(loader.prefetch_factor) and _only_seeds(loader.worker_init_fn) and not is_watched()


_SEEDERS = {
    ("lightning_fabric", "pl_worker_init_function"),
    ("lightning", "pl_worker_init_function"),
    ("transformers", "seed_worker"),
}


def _only_seeds(worker_init_fn: Any) -> bool:
    """Whether workers would start with nothing but random states, which gathering does not use."""
    function = getattr(worker_init_fn, "func", worker_init_fn)  # of a partial
    root = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", "")
    return function is None or (root.partition(".")[0], name) in _SEEDERS
