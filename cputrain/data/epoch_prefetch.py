"""The next epoch's first batches, made while the last ones of this epoch are consumed.

Which rows they hold is foretold from copies of the random states, so nothing is drawn twice; when
the epoch begins, the sampler is asked as ever, and what was made is used only if it says the same.
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


# NumPy loads it when it is first used, and drops an interrupt that arrives meanwhile
with deferred_signals():
    importlib.import_module("numpy.random")


class Ahead(NamedTuple):
    """Stands for the number of a task that was sent before its epoch began."""

    epoch: int
    number: int


class Forget(NamedTuple):
    """Told to a worker whose batches of an epoch are not wanted."""

    epoch: int


class EpochPrefetch:
    """What has been foretold, sent and received of it."""

    def __init__(self, number: int, rows: list[Any]) -> None:
        self.number = number
        self.rows = rows
        """Of its first batches, as the sampler would list them now."""
        self.sent = 0
        """How many of those workers have been asked for."""
        self.made: dict[int, Any] = {}
        """Those that have come."""

    def is_as_foretold(self, rows: list[Any]) -> bool:
        """Whether the sampler, now that the epoch begins, lists what has been sent."""
        return rows == self.rows[: self.sent]


def foretell(sampler: Any, number: int, count: int) -> EpochPrefetch | None:
    """The epoch after this one; None if it is not certain, or asking could be noticed."""
    if type(sampler) is not BatchSampler or not _is_certain(sampler.sampler):
        return None
    states = SamplerStates(sampler)
    try:
        rows = list(islice(iter(sampler), count))
    finally:
        states.restore()
    plain = all(type(row) is int for batch in rows for row in batch)
    return EpochPrefetch(number, rows) if plain else None


def _is_certain(sampler: Any) -> bool:
    """Whether nothing a script usually does between two epochs changes what a sampler lists.

    One without a generator of its own draws from torch's, as dropout on the CPU does too.
    """
    kind = type(sampler)
    if kind is DistributedSampler:
        return not sampler.shuffle
    if kind in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler):
        return sampler.generator is not None
    return kind is SequentialSampler


def may_change_between_epochs(*things: Any) -> bool:
    """Whether a worker's copies hold what makes an early epoch differ from a timely one.

    What the script does to its own between two epochs does not reach the copies, unless they share
    memory, as scripts do to tell workers the epoch. And random numbers that a dataset draws from a
    generator of its own could not be put back, were the early epoch not wanted.
    """
    seen: set[int] = set()
    level = list(things)
    while level:
        if any(is_live(thing) for thing in level):
            return True
        seen.update(map(id, level))
        if len(seen) > _MOST:
            return True  # too much to look through
        parts = list(chain.from_iterable(map(_parts, level)))
        level = list({id(part): part for part in parts if id(part) not in seen}.values())
    return False


_MOST = 10_000
"""Parts that are looked at."""

_ASKED = ("__getitem__", "__getitems__", "__call__")
"""Methods that workers call."""


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, _LEAVES):
        return ()
    if isinstance(thing, dict):
        return islice(thing.values(), 32)
    if isinstance(thing, (list, tuple, set, deque)):
        return islice(thing, 32)
    if isinstance(thing, np.ndarray):
        return (thing.base,)
    if isinstance(thing, memoryview):
        return (thing.obj,)
    if isinstance(thing, MethodType):
        return thing.__self__, thing.__func__
    if isinstance(thing, FunctionType):
        named = (thing.__globals__.get(name) for name in thing.__code__.co_names)
        cells = (cell.cell_contents for cell in thing.__closure__ or () if cell != CellType())
        return chain(named, cells, thing.__defaults__ or ())
    if isinstance(thing, partial):
        return thing.func, thing.args, thing.keywords
    kind = type(thing)
    slots = chain.from_iterable(getattr(base, "__slots__", ()) for base in kind.__mro__)
    held = (getattr(thing, name, None) for name in slots if isinstance(name, str))
    methods = (vars(base).get(name) for base in kind.__mro__ for name in _ASKED)
    return chain(getattr(thing, "__dict__", {}).values(), held, methods)


_LEAVES = (torch.Tensor, str, bytes, int, float, type, type(None), ModuleType)

_GENERATORS = (torch.Generator, random.Random, np.random.Generator, np.random.RandomState)


def is_live(thing: Any) -> bool:
    """Whether it changes by itself, or by what another process does."""
    if isinstance(thing, torch.Tensor):
        return thing.layout is not torch.strided or thing.is_shared()
    if isinstance(thing, type):
        return False
    home = type(thing).__module__.partition(".")[0]
    return isinstance(thing, _GENERATORS) or home in ("multiprocessing", "ctypes", "mmap")
