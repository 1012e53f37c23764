"""The cache of a loader's samples: whether there is one, where, and what became of it."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, Subset

from cputrain.data.cached_dataset import CachedDataset
from cputrain.data.fingerprint import Fingerprint, Known, NoKeyError
from cputrain.data.messages import say
from cputrain.data.sample_store import Board, SampleStore
from cputrain.errors import UsageError
from cputrain.machine import read_machine

if TYPE_CHECKING:
    from cputrain.data.statistics import Statistics

MEMORY = "memory"

_MAX_PROCESSES = 1024
"""Workers of a loader that are counted on."""

_MAX_ROWS = 1 << 24
"""Of a dataset: each process has a table of them."""


class SampleCache:
    """What a loader was asked to keep.

    Args:
        dataset: of the loader.
        where: "memory", or a folder.
        max_bytes: that may be kept; None for a quarter of the memory, or half of what is free.
    """

    def __init__(self, dataset: Any, where: Any, max_bytes: Any) -> None:
        if isinstance(dataset, IterableDataset):
            raise UsageError(
                "cache",
                "needs a dataset whose samples have an index",
                found=f"{type(dataset).__name__}, which is iterable",
                do="Leave cache= out, or give the dataset a __getitem__.",
            )
        self._folder = _folder_of(where)
        if max_bytes is not None and (type(max_bytes) is not int or max_bytes <= 0):
            raise UsageError(
                "cache_bytes",
                "must be a number of bytes above 0",
                found=repr(max_bytes),
                do="cache_bytes=8 << 30 keeps 8 GiB.",
            )
        self._max_bytes = max_bytes if max_bytes is not None else _default_bytes(self._folder)
        self._known_lists: dict[int, Known] = {}
        self._key = ""
        self._store: SampleStore | None = None
        self._board: Board | None = None
        self._counted = 0
        self._refused = ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _made_again, (self._folder or MEMORY, self._max_bytes)

    def dataset_for(self, loader: Any, notes: list[str]) -> CachedDataset | None:
        """Return what takes the place of the dataset in an epoch; None if nothing is kept."""
        dataset, num_slots = loader.dataset, max(1, loader.num_workers)
        if self._refused:
            return None
        try:
            found = Fingerprint(dataset, by_identity=self._folder is None, known=self._known_lists)
            reason = _reason_against(dataset, found)
        except NoKeyError as error:
            reason = str(error)
        except Exception as error:  # of the script's objects, or too many one in the other
            reason = f"looking at what it holds raises {type(error).__name__}: {error}"
        if reason:
            self._refuse(f"the samples of {type(dataset).__name__} are not kept: {reason}", notes)
            return None
        try:
            if self._store is None or found.key != self._key:
                self._begin(dataset, found.key, num_slots)
            assert self._store is not None
            self._store.make_room(num_slots)
        except OSError as error:
            self._refuse(f"samples are not kept: {error}", notes)
            return None
        return CachedDataset(dataset, self._store, found.generators)

    def _begin(self, dataset: Any, key: str, num_slots: int) -> None:
        folder = None
        if self._folder is not None:
            folder = os.path.join(self._folder, f"{type(dataset).__name__}-{key}")
        if self._board is not None:
            self._counted += self._board.num_hits
        self._board = Board.create(max(_MAX_PROCESSES, num_slots))
        self._key = key
        self._store = SampleStore(len(dataset), self._max_bytes, self._board, folder)

    def _refuse(self, text: str, notes: list[str]) -> None:
        self._refused = text
        notes.append(text)
        say(text)

    def tell(self, statistics: Statistics) -> None:
        """Put into the statistics what the cache has done so far."""
        board, store = self._board, self._store
        if board is None or store is None:
            return
        statistics.cached = self._counted + board.num_hits
        statistics.cache_bytes = store.num_bytes()
        notes = [board.reason] if board.is_refused else []
        if board.is_full:
            notes.append(
                f"no more samples are kept: there is no room, or {self._max_bytes:,} bytes "
                "(cache_bytes) are reached"
            )
        statistics.notes += [note for note in notes if note not in statistics.notes]


def _made_again(where: str, max_bytes: int) -> SampleCache:
    return SampleCache(None, where, max_bytes)


def _reason_against(dataset: Any, found: Fingerprint) -> str:
    if "get_worker_info" in found.names:
        return "its code asks which worker makes them (get_worker_info)"
    if not hasattr(dataset, "__len__"):
        return "it has no length"
    if len(dataset) > _MAX_ROWS:
        return f"it has {len(dataset):,} of them, more than {_MAX_ROWS:,}"
    inner = dataset
    while isinstance(inner, Subset) and type(inner).__getitems__ is Subset.__getitems__:
        inner = inner.dataset
    if hasattr(inner, "__getitems__"):
        return f"{type(inner).__name__} makes them by batches (__getitems__)"
    return ""


def _folder_of(where: Any) -> str | None:
    if where == MEMORY:
        return None
    rule = 'must be "memory" or a folder that can be written to'
    if not isinstance(where, (str, os.PathLike)) or not os.fspath(where):
        raise UsageError("cache", rule, found=repr(where), do='Pass cache="memory".')
    folder = os.path.abspath(os.path.expanduser(os.fsdecode(os.fspath(where))))
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError("cache", rule, found=f"{folder} ({error.strerror})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError("cache", rule, found=f"{folder}, which is read-only")
    return folder


def _default_bytes(folder: str | None) -> int:
    if folder is not None:
        return max(1, shutil.disk_usage(folder).free // 2)
    memory_bytes = read_machine(detail=False).budget.memory_bytes
    return memory_bytes // 4 if memory_bytes else 1 << 30
