"""Prefetching the first batches of the next epoch while the script consumes the last of this one.

Their rows are predicted: the sampler runs early, and then its random states are restored. The
sampler runs again when the epoch begins, and prefetched batches are used only if rows are equal.
"""

from __future__ import annotations

import importlib
import random
from collections import deque
from functools import partial
from itertools import chain, islice
from types import CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from cputrain.data.random_states import SamplerStates
from cputrain.ipc.interrupts import deferred_signals

if TYPE_CHECKING:
    from collections.abc import Iterable


# NumPy imports it at its first use, and loses an interrupt that arrives during the import
with deferred_signals():
    importlib.import_module("numpy.random")


class PrefetchTask(NamedTuple):
    """The number of a task that is sent before its epoch begins."""

    epoch: int
    number: int


class DiscardEpoch(NamedTuple):
    """A message to workers: the prefetched batches of an epoch are not used."""

    epoch: int


class EpochPrefetch:
    """The state of a prefetched epoch: its predicted rows, tasks sent, and results received."""

    def __init__(self, number: int, rows: list[Any]) -> None:
        self.number = number
        self.rows = rows
        """The predicted rows of its first batches."""
        self.num_sent = 0
        """The number of these batches whose tasks have been sent to workers."""
        self.results: dict[int, Any] = {}
        """Batches that have been received, by number."""

    def matches(self, rows: list[Any]) -> bool:
        """Return whether the rows that were sent equal those of the epoch that begins."""
        return rows == self.rows[: self.num_sent]


def predict_next_epoch(sampler: Any, number: int, max_batches: int) -> EpochPrefetch | None:
    """Return the next epoch's predicted rows; None if they are uncertain or the sampler is unknown.

    Args:
        sampler: The loader's batch sampler.
        number: The epoch's number.
        max_batches: The largest number of batches to predict.
    """
    if type(sampler) is not BatchSampler or not _has_predictable_order(sampler.sampler):
        return None
    states = SamplerStates(sampler)
    try:
        rows = list(islice(iter(sampler), max_batches))
    finally:
        states.restore()
    are_ints = all(type(row) is int for batch in rows for row in batch)
    return EpochPrefetch(number, rows) if are_ints else None


def _has_predictable_order(sampler: Any) -> bool:
    """Return whether the usual steps of a script between epochs leave a sampler's order unchanged.

    A sampler without a generator draws from torch's default generator, as dropout on the CPU does.
    """
    kind = type(sampler)
    if kind is DistributedSampler:
        return not sampler.shuffle
    if kind in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return sampler.generator is not None
    return kind is SequentialSampler


def may_change_between_epochs(*roots: Any) -> bool:
    """Return whether objects may hold something that makes a prefetched epoch differ.

    A script that changes its dataset between epochs does not change the workers' copies, unless
    they share memory, by which some scripts tell workers the epoch. A dataset's generator counts
    too: its state could not be restored if the prefetched epoch were discarded.

    Args:
        roots: The dataset and the functions that workers call.
    """
    seen: set[int] = set()
    level = list(roots)
    while level:
        if any(is_volatile(value) for value in level):
            return True
        seen.update(map(id, level))
        if len(seen) > _MAX_OBJECTS:
            return True  # too many objects to check
        parts = list(chain.from_iterable(map(_parts, level)))
        level = list({id(part): part for part in parts if id(part) not in seen}.values())
    return False


_MAX_OBJECTS = 10_000
"""Objects that are checked at most."""

_WORKER_METHODS = ("__getitem__", "__getitems__", "__call__")
"""Methods that workers call."""


def _parts(value: Any) -> Iterable[Any]:
    """Return objects that a value refers to, and that may matter to workers."""
    if isinstance(value, _LEAVES):
        return ()
    if isinstance(value, dict):
        return islice(value.values(), 32)
    if isinstance(value, (list, tuple, set, deque)):
        return islice(value, 32)
    if isinstance(value, np.ndarray):
        return (value.base,)
    if isinstance(value, memoryview):
        return (value.obj,)
    if isinstance(value, MethodType):
        return value.__self__, value.__func__
    if isinstance(value, FunctionType):
        global_values = (value.__globals__.get(name) for name in value.__code__.co_names)
        cells = (cell.cell_contents for cell in value.__closure__ or () if cell != CellType())
        return chain(global_values, cells, value.__defaults__ or ())
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    kind = type(value)
    slots = chain.from_iterable(getattr(base, "__slots__", ()) for base in kind.__mro__)
    slot_values = (getattr(value, name, None) for name in slots if isinstance(name, str))
    methods = (vars(base).get(name) for base in kind.__mro__ for name in _WORKER_METHODS)
    return chain(getattr(value, "__dict__", {}).values(), slot_values, methods)


_LEAVES = (torch.Tensor, str, bytes, int, float, type, type(None), ModuleType)

_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def is_volatile(value: Any) -> bool:
    """Return whether a value is a generator, or is in memory that processes may share."""
    if isinstance(value, torch.Tensor):
        return value.layout is not torch.strided or value.is_shared()
    if isinstance(value, type):
        return False
    root_module = type(value).__module__.partition(".")[0]
    return isinstance(value, _GENERATORS) or root_module in ("multiprocessing", "ctypes", "mmap")
