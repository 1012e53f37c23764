"""The sample cache of a loader: its arguments, its key, and its statistics."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, Subset

from cputrain.data.cached_dataset import CachedDataset
from cputrain.data.fingerprint import Fingerprint, HashedList, NoKeyError
from cputrain.data.messages import say
from cputrain.data.sample_store import SampleStore, SharedCacheState
from cputrain.errors import UsageError, argument_error
from cputrain.machine import read_machine

if TYPE_CHECKING:
    from cputrain.data.statistics import Statistics

MEMORY = "memory"

_MAX_PROCESSES = 1024
"""Processes of one loader that can count cache hits, unless it has more workers."""

_MAX_ROWS = 1 << 24
"""Largest dataset that is cached: each process has a table with an entry for each row."""


class SampleCache:
    """The cache that a loader's `cache` and `cache_bytes` ask for.

    Args:
        dataset: The loader's dataset.
        location: "memory" or a folder.
        max_bytes: The largest size of the cache in bytes; None for a quarter of the memory, or half
            of the free space of the folder's file system.
    """

    def __init__(self, dataset: Any, location: Any, max_bytes: Any) -> None:
        if isinstance(dataset, IterableDataset):
            raise UsageError(
                "cache",
                "needs a dataset whose samples have an index",
                found=f"{type(dataset).__name__}, which is iterable",
                do="Leave cache= out, or give the dataset a __getitem__.",
            )
        self._folder = _folder_of(location)
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
            raise argument_error(max_bytes, int)(
                "cache_bytes",
                "must be a number of bytes above 0",
                found=repr(max_bytes),
                do="cache_bytes=8 << 30 keeps 8 GiB.",
            )
        self._max_bytes = max_bytes if max_bytes is not None else _default_bytes(self._folder)
        self._known_lists: dict[int, HashedList] = {}
        self._key = ""
        self._store: SampleStore | None = None
        self._state: SharedCacheState | None = None
        self._num_earlier_hits = 0
        """Hits in stores of earlier keys."""
        self._refusal = ""
        """Why samples are not cached; empty if they are."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (self._folder or MEMORY, self._max_bytes)

    def dataset_for(self, loader: Any, notes: list[str]) -> CachedDataset | None:
        """Return the dataset that uses the cache in the next epoch; None if it cannot be cached.

        Args:
            loader: The loader.
            notes: Gets the reason if the dataset cannot be cached.
        """
        dataset, num_slots = loader.dataset, max(1, loader.num_workers)
        if self._refusal:
            return None
        try:
            fingerprint = Fingerprint(
                dataset, by_identity=self._folder is None, known=self._known_lists
            )
            reason = _refusal_reason(dataset, fingerprint)
        except NoKeyError as error:
            reason = str(error)
        except Exception as error:  # of the script's objects, or RecursionError
            reason = f"reading its attributes raises {type(error).__name__}: {error}"
        if reason:
            self._disable(
                f"the samples of {type(dataset).__name__} are not cached: {reason}", notes
            )
            return None
        try:
            if self._store is None or fingerprint.key != self._key:
                self._open_store(dataset, fingerprint.key, num_slots)
            assert self._store is not None
            self._store.prepare(num_slots)
        except OSError as error:
            self._disable(f"samples are not cached: {error}", notes)
            return None
        return CachedDataset(dataset, self._store, fingerprint.generators)

    def _open_store(self, dataset: Any, key: str, num_slots: int) -> None:
        """Create the store of a key."""
        folder = None
        if self._folder is not None:
            folder = os.path.join(self._folder, f"{type(dataset).__name__}-{key}")
        if self._state is not None:
            self._num_earlier_hits += self._state.num_hits
        self._state = SharedCacheState.create(max(_MAX_PROCESSES, num_slots))
        self._key = key
        self._store = SampleStore(len(dataset), self._max_bytes, self._state, folder)

    def _disable(self, text: str, notes: list[str]) -> None:
        """Disable the cache of this loader, and report why."""
        self._refusal = text
        notes.append(text)
        say(text)

    def update_statistics(self, statistics: Statistics) -> None:
        """Write the number of hits, the size and the notes of the cache to the statistics."""
        state, store = self._state, self._store
        if state is None or store is None:
            return
        statistics.cached = self._num_earlier_hits + state.num_hits
        statistics.cache_bytes = store.num_bytes()
        notes = [state.reason] if state.is_disabled else []
        if state.is_full:
            notes.append(
                f"no more samples are cached: the memory or disk is full, or {self._max_bytes:,} "
                "bytes (cache_bytes) are reached"
            )
        statistics.notes += [note for note in notes if note not in statistics.notes]


def _recreate(location: str, max_bytes: int) -> SampleCache:
    return SampleCache(None, location, max_bytes)


def _refusal_reason(dataset: Any, fingerprint: Fingerprint) -> str:
    """Return why a dataset's samples cannot be cached; empty if they can."""
    if "get_worker_info" in fingerprint.names:
        return "its code calls get_worker_info"
    if not hasattr(dataset, "__len__"):
        return "it has no __len__"
    if len(dataset) > _MAX_ROWS:
        return f"it has {len(dataset):,} samples, more than {_MAX_ROWS:,}"
    inner = dataset
    while isinstance(inner, Subset) and type(inner).__getitems__ is Subset.__getitems__:
        inner = inner.dataset
    if hasattr(inner, "__getitems__"):
        return f"{type(inner).__name__} loads them in batches (__getitems__)"
    return ""


def _folder_of(location: Any) -> str | None:
    """Return the absolute path of the cache's folder, which is created; None for memory."""
    if location == MEMORY:
        return None
    rule = 'must be "memory" or a folder that can be written to'
    if not isinstance(location, (str, os.PathLike)) or not os.fspath(location):
        raise UsageError("cache", rule, found=repr(location), do='Pass cache="memory".')
    folder = os.path.abspath(os.path.expanduser(os.fsdecode(os.fspath(location))))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError("cache", rule, found=f"{folder} ({error.strerror})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError("cache", rule, found=f"{folder}, which is read-only")
    return folder


def _default_bytes(folder: str | None) -> int:
    """Return the largest size of a cache for which the user gives none."""
    if folder is not None:
        return max(1, shutil.disk_usage(folder).free // 2)
    memory_bytes = read_machine(detail=False).budget.memory_bytes
    return memory_bytes // 4 if memory_bytes else 1 << 30
