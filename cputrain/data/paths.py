"""Which way a loader's batches are made."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data._utils import collate
from torch.utils.data.dataloader import _DatasetKind

from cputrain.data.columns import columns_of, gathers_as_torch
from cputrain.data.memory import MemoryIterator
from cputrain.data.notices import say
from cputrain.data.process import ProcessIterator
from cputrain.data.statistics import Statistics

if TYPE_CHECKING:
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from cputrain.data.columns import Columns


def iterator_of(loader: DataLoader[Any], *, skip: int = 0) -> _BaseDataLoaderIter:
    """An iterator over the loader's batches, made the fastest way that gives torch's batches."""
    statistics = statistics_of(loader)
    statistics.epochs += 1
    columns = _columns(loader)
    if columns is not None:
        statistics.path, statistics.workers = "memory", 0
        statistics.reason = "the data is in memory, and rows are gathered in one call"
        statistics.spared = loader.num_workers
        if loader.num_workers:
            statistics.reason += f"; {loader.num_workers} workers would only make it slower"
            say(
                "the data of a DataLoader is in memory: its batches are gathered in this process, "
                f"and the {loader.num_workers} workers it asks for are not started"
            )
        return MemoryIterator(loader, columns, statistics, skip=skip)
    if loader.num_workers == 0:
        statistics.path, statistics.workers = "process", 0
        statistics.reason = "num_workers is 0"
        return ProcessIterator(loader, statistics)
    from cputrain.data.workers import WorkersIterator

    statistics.path, statistics.workers = "workers", loader.num_workers
    statistics.reason = f"num_workers is {loader.num_workers}"
    return WorkersIterator(loader, statistics)


def statistics_of(loader: DataLoader[Any]) -> Statistics:
    """The loader's own record."""
    kept = vars(loader).get("_cputrain_statistics")
    if kept is None:
        kept = loader._cputrain_statistics = Statistics()
    return kept


def why_not() -> str:
    """Why loaders are left to torch on this system; nothing if they are not."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return "shared memory without a name needs Linux"
    return ""


def _columns(loader: DataLoader[Any]) -> Columns | None:
    """The dataset as columns, where gathering them is all that torch would do."""
    if (
        loader._dataset_kind != _DatasetKind.Map
        or not loader._auto_collation
        or loader.collate_fn is not collate.default_collate
        or collate.default_collate_fn_map.get(torch.Tensor) is not collate.collate_tensor_fn
        or (loader.num_workers and loader.worker_init_fn is not None)
        or (not loader.num_workers and loader.timeout)
        or torch.utils.data.get_worker_info() is not None
    ):
        return None
    columns = columns_of(loader.dataset)
    if columns is None or not columns.rows:
        return None
    agrees = vars(loader).get("_cputrain_gathers")
    if agrees is None:
        agrees = gathers_as_torch(columns, loader.dataset, loader.collate_fn)
        loader._cputrain_gathers = agrees
    return columns if agrees else None
