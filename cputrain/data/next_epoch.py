"""The next epoch's first batches, made while the last ones of this epoch are consumed.

Which rows they hold is foretold from copies of the random states, so nothing is drawn twice; when
the epoch begins, the sampler is asked as ever, and what was made is used only if it says the same.
"""

from __future__ import annotations

from itertools import chain, islice
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

if TYPE_CHECKING:
    from collections.abc import Iterable


class Ahead(NamedTuple):
    """Stands for the number of a task that was sent before its epoch began."""

    epoch: int
    number: int


class Forget(NamedTuple):
    """Told to a worker whose batches of an epoch are not wanted."""

    epoch: int


class RandomStates:
    """Those that a sampler draws from, as they were."""

    def __init__(self, sampler: Any) -> None:
        generator = getattr(getattr(sampler, "sampler", None), "generator", None)
        self._generator = generator if isinstance(generator, torch.Generator) else None
        self._own = None if self._generator is None else self._generator.get_state()
        self._state = torch.get_rng_state()

    def restore(self) -> None:
        """Put them back."""
        torch.set_rng_state(self._state)
        if self._generator is not None and self._own is not None:
            self._generator.set_state(self._own)


class NextEpoch:
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


def foretell(sampler: Any, number: int, count: int) -> NextEpoch | None:
    """The epoch after this one; None if asking its sampler could be noticed."""
    if type(sampler) is not BatchSampler or type(sampler.sampler) not in _PURE:
        return None
    states = RandomStates(sampler)
    try:
        return NextEpoch(number, list(islice(iter(sampler), count)))
    finally:
        states.restore()


_PURE = (
    SequentialSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
    DistributedSampler,
)
"""Samplers that change nothing but a random state when they are iterated."""


def may_change_between_epochs(dataset: Any) -> bool:
    """Whether a dataset holds something that the script can change while workers have it.

    A worker's dataset is a copy, so what the script does to its own between two epochs does not
    reach it: unless they share memory, as scripts do to tell workers the epoch.
    """
    seen: set[int] = set()
    level = [dataset]
    while level:
        if any(_is_shared(thing) for thing in level):
            return True
        seen.update(map(id, level))
        if len(seen) > _MOST:
            return True  # too much to look through
        parts = chain.from_iterable(map(_parts, level))
        level = list({id(part): part for part in parts if id(part) not in seen}.values())
    return False


_MOST = 10_000
"""Parts of a dataset that are looked at."""


def _parts(thing: Any) -> Iterable[Any]:
    if isinstance(thing, _LEAVES):
        return ()
    if isinstance(thing, dict):
        return islice(thing.values(), 32)
    if isinstance(thing, (list, tuple, set)):
        return islice(thing, 32)
    return getattr(thing, "__dict__", {}).values()


_LEAVES = (torch.Tensor, str, bytes, int, float, type, type(None), ModuleType, FunctionType)


def _is_shared(thing: Any) -> bool:
    if isinstance(thing, torch.Tensor):
        return thing.is_shared()
    return type(thing).__module__.partition(".")[0] in ("multiprocessing", "ctypes", "mmap")
