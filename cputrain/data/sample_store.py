"""The cached samples as one process sees them: it reads all files and writes to its own."""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import struct
import time
from contextlib import suppress
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from cputrain.data.sample_files import ENTRIES, ENTRY, SampleFile, SampleFileWriter
from cputrain.ipc.memfd import create_memfd

if TYPE_CHECKING:
    from collections.abc import Sequence

_REFRESH_FACTOR = 50
"""A miss refreshes the entries if this many times the last refresh's duration has passed."""


class SharedCacheState:
    """Memory shared by a loader's processes: whether the cache is disabled, and hit counts.

    Args:
        descriptor: Of the memory.
        num_slots: The number of processes that have a counter.
    """

    _TEXT, _SLOTS, _SLOT = 16, 4096, 16
    """Offsets of the reason's text and of the slots, and the size of a slot, in bytes."""
    _close = staticmethod(os.close)

    def __init__(self, descriptor: int, num_slots: int) -> None:
        self._num_slots = num_slots
        self._map = mmap.mmap(descriptor, self._SLOTS + num_slots * self._SLOT)
        self._descriptor = descriptor  # (last: one that cannot be mapped is closed by `create`)
        self._view = memoryview(self._map)
        self._hits = self._view[self._SLOTS :].cast("Q")

    @classmethod
    def create(cls, num_slots: int) -> SharedCacheState:
        """Create the memory; raise OSError if the system refuses."""
        descriptor = create_memfd()
        try:
            os.ftruncate(descriptor, cls._SLOTS + num_slots * cls._SLOT)
            return cls(descriptor, num_slots)
        except OSError:
            os.close(descriptor)
            raise

    @property
    def is_disabled(self) -> bool:
        """Whether samples are no longer cached, nor read from the cache."""
        return self._map[0] != 0

    @property
    def reason(self) -> str:
        """Why the cache is disabled; empty if it is not."""
        (size,) = struct.unpack_from("<q", self._view, 8)
        return self._view[self._TEXT : self._TEXT + size].tobytes().decode("utf-8", "replace")

    def disable(self, reason: str) -> bool:
        """Disable the cache in all processes; return False if it was disabled already."""
        with _exclusive_lock(self._descriptor):
            if self.is_disabled:
                return False
            data = reason.encode("utf-8", "replace")[: self._SLOTS - self._TEXT]
            self._view[self._TEXT : self._TEXT + len(data)] = data
            struct.pack_into("<q", self._view, 8, len(data))
            self._view[0] = 1
        return True

    def count_hit(self, slot: int) -> None:
        """Count a sample that the process of a slot has read from the cache."""
        self._hits[2 * slot] += 1

    def set_full(self, slot: int) -> None:
        """Record that the process of a slot has stopped adding samples."""
        self._hits[2 * slot + 1] = 1

    @property
    def num_hits(self) -> int:
        """The number of samples that all processes have read from the cache."""
        return sum(self._hits[::2].tolist())

    @property
    def is_full(self) -> bool:
        """Whether a process has stopped adding samples."""
        return any(self._hits[1::2].tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_state, (reduction.DupFd(self._descriptor), self._num_slots)

    def __del__(self) -> None:
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            self._close(descriptor)


def _receive_state(duplicate: Any, num_slots: int) -> SharedCacheState:
    return SharedCacheState(duplicate.detach(), num_slots)


class _exclusive_lock:  # noqa: N801  (used as a statement)
    """Hold an advisory lock on a file for the duration of a block."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


class SampleStore:
    """The cached samples of one key, in a folder or in memory.

    Args:
        num_rows: The length of the dataset; samples with other indices are not cached.
        max_bytes: The largest size of all files of the key, in bytes.
        state: The loader's shared state.
        folder: The folder of the key's files; None for memory.
        files: Files in memory, one for each process that may write.
    """

    def __init__(
        self,
        num_rows: int,
        max_bytes: int,
        state: SharedCacheState,
        folder: str | None,
        files: Sequence[SampleFile] = (),
    ) -> None:
        self._num_rows, self._max_bytes, self._state = num_rows, max_bytes, state
        self._folder, self._files = folder, list(files)
        self._slot = 0
        self._writer: SampleFileWriter | None = None
        self._owner_pid = 0
        """The process that called `open`; a forked child has to call it again."""
        self._can_write = False
        self._known_names: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        files = [] if self._folder else self._files
        return SampleStore, (self._num_rows, self._max_bytes, self._state, self._folder, files)

    def open(self, slot: int) -> None:
        """Open the files in this process.

        Args:
            slot: The number of the process; in memory it writes to the file of this number, unless
                another process does.
        """
        self._slot = slot
        if self._owner_pid != os.getpid():
            self._owner_pid, self._writer = os.getpid(), None
            self._entries, self._file_of = np.empty(0, ENTRY), np.empty(0, np.int64)
            self._is_verified = np.empty(0, bool)
            self._entry_of_row = np.full(self._num_rows, -1, np.int32)
            for file in self._files:
                file.rewind()
            if self._folder is None:
                self._can_write = self._open_writer(self._files[slot])
            else:
                self._files, self._known_names, self._can_write = [], set(), True
            self._next_refresh_s = 0.0
        self.refresh()

    def _open_writer(self, file: SampleFile) -> bool:
        """Lock a file in memory for writing; return False if another process has locked it."""
        try:
            fcntl.lockf(file.entries, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._writer = SampleFileWriter(file)
        except OSError:  # locked by a worker of an earlier iterator that still runs
            return False
        return True

    @property
    def is_disabled(self) -> bool:
        """Whether samples are no longer cached, nor read from the cache."""
        return self._state.is_disabled

    @property
    def has_room(self) -> bool:
        """Whether this process may add samples; a forked child may not."""
        return self._can_write and self._owner_pid == os.getpid()

    def prepare(self, num_slots: int) -> None:
        """Create the folder, or files in memory for `num_slots` processes. Raises OSError."""
        if self._folder is not None:
            os.makedirs(self._folder, exist_ok=True)
            return
        while len(self._files) < num_slots:
            self._files.append(SampleFile.in_memfd())

    def has_row(self, row: int) -> bool:
        """Return whether a row is within the dataset, so that its sample can be cached."""
        return 0 <= row < self._num_rows

    def disable(self, reason: str) -> bool:
        """Disable the cache in all processes; return False if it was disabled already."""
        return self._state.disable(reason)

    def count_hit(self) -> None:
        """Count a sample that was read from the cache."""
        self._state.count_hit(self._slot)

    def find(self, row: int) -> np.ndarray[Any, Any] | None:
        """Return a new buffer with the encoded sample of a row; None if it is not cached.

        Args:
            row: A row for which `has_row` is true.
        """
        index = self._entry_of_row[row]
        if index < 0:
            if time.monotonic() < self._next_refresh_s:
                return None
            self.refresh()
            index = self._entry_of_row[row]
            if index < 0:
                return None
        file = self._files[self._file_of[index]]
        try:
            data = file.read(self._entries[index], is_verified=bool(self._is_verified[index]))
        except OSError:
            data = None
        self._is_verified[index] = data is not None
        if data is None:
            self._entry_of_row[row] = -1  # the caller loads and adds it again
        return data

    def add(self, row: int, parts: Sequence[bytes]) -> None:
        """Write an encoded sample, unless the cache would exceed its size or the disk is full."""
        try:
            if self.num_bytes() + sum(map(len, parts)) + ENTRY.itemsize > self._max_bytes:
                self._stop_writing()
                return
            if self._writer is None:
                self._writer = self._create_file()
            self._writer.add(row, parts)
        except OSError:  # a full disk
            self._stop_writing()

    def _stop_writing(self) -> None:
        self._can_write = False
        self._state.set_full(self._slot)

    def _create_file(self) -> SampleFileWriter:
        """Create this process's file in the folder."""
        assert self._folder is not None
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        file = SampleFile.create(os.path.join(self._folder, name))
        self._known_names.add(name + ENTRIES)
        self._files.append(file)
        return SampleFileWriter(file)

    def num_bytes(self) -> int:
        """Return the size in bytes of the key's files, of all processes."""
        total = 0
        if self._folder is not None:
            with suppress(FileNotFoundError), os.scandir(self._folder) as items:
                for item in items:
                    with suppress(FileNotFoundError):  # files may be deleted at any time
                        total += item.stat().st_size
            return total
        return sum(
            os.fstat(descriptor).st_size
            for file in self._files
            for descriptor in (file.samples, file.entries)
        )

    def refresh(self) -> None:
        """Read the entries that other processes have added since the last call."""
        if self._owner_pid != os.getpid():
            return
        begin = time.monotonic()
        if self._folder is not None:
            self._open_new_files(self._folder)
        new_entries, files = [], []
        for index, file in enumerate(self._files):
            entries = file.new_entries()
            if len(entries):
                new_entries.append(entries)
                files.append(np.full(len(entries), index))
        if new_entries:
            added = np.concatenate(new_entries)
            first = len(self._entries)
            self._entries = np.concatenate([self._entries, added])
            self._file_of = np.concatenate([self._file_of, *files])
            self._is_verified = np.concatenate([self._is_verified, np.zeros(len(added), bool)])
            is_in_range = (added["row"] >= 0) & (added["row"] < self._num_rows)
            self._entry_of_row[added["row"][is_in_range]] = first + np.flatnonzero(is_in_range)
        end = time.monotonic()
        self._next_refresh_s = end + _REFRESH_FACTOR * (end - begin)

    def _open_new_files(self, folder: str) -> None:
        """Open the files that other processes have created in the folder."""
        names: list[str] = []
        with suppress(FileNotFoundError):  # the folder has been deleted
            names = sorted(os.listdir(folder))
        for name in names:
            if name.endswith(ENTRIES) and name not in self._known_names:
                self._known_names.add(name)
                try:
                    file = SampleFile.open(os.path.join(folder, name.removesuffix(ENTRIES)))
                except OSError:  # it has been deleted, or this process may not read it
                    continue
                self._files.append(file)
