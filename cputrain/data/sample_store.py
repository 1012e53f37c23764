"""Where samples are kept, as one process sees it: what all have written, and a file of its own."""

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

_PATIENCE = 50
"""Files are looked at again after so many times what the last look took."""


class Board:
    """What all processes of a loader share: whether samples are kept, and how many were used."""

    _TEXT, _SLOTS, _SLOT = 16, 4096, 16
    _close = staticmethod(os.close)

    def __init__(self, descriptor: int, num_slots: int) -> None:
        self._descriptor, self._num_slots = descriptor, num_slots
        self._map = mmap.mmap(descriptor, self._SLOTS + num_slots * self._SLOT)
        self._view = memoryview(self._map)
        self._hits = self._view[self._SLOTS :].cast("Q")

    @classmethod
    def create(cls, num_slots: int) -> Board:
        """Make a new one. Raises OSError."""
        descriptor = create_memfd()
        try:
            os.ftruncate(descriptor, cls._SLOTS + num_slots * cls._SLOT)
            return cls(descriptor, num_slots)
        except OSError:
            os.close(descriptor)
            raise

    @property
    def is_refused(self) -> bool:
        """Whether samples are neither kept nor read any more."""
        return self._map[0] != 0

    @property
    def reason(self) -> str:
        """Why not; empty if they are."""
        (size,) = struct.unpack_from("<q", self._view, 8)
        return self._view[self._TEXT : self._TEXT + size].tobytes().decode("utf-8", "replace")

    def refuse(self, reason: str) -> bool:
        """Have no process keep or read any; return whether this was the first to say so."""
        with _locked(self._descriptor):
            if self.is_refused:
                return False
            data = reason.encode("utf-8", "replace")[: self._SLOTS - self._TEXT]
            self._view[self._TEXT : self._TEXT + len(data)] = data
            struct.pack_into("<q", self._view, 8, len(data))
            self._view[0] = 1
        return True

    def count_hit(self, slot: int) -> None:
        """A process has read a sample that was kept."""
        self._hits[2 * slot] += 1

    def set_full(self, slot: int) -> None:
        """A process has no room for more samples."""
        self._hits[2 * slot + 1] = 1

    @property
    def num_hits(self) -> int:
        """Samples that were read in the place of making them."""
        return sum(self._hits[::2].tolist())

    @property
    def is_full(self) -> bool:
        """Whether a process had no room for a sample."""
        return any(self._hits[1::2].tolist())

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive_board, (reduction.DupFd(self._descriptor), self._num_slots)

    def __del__(self) -> None:
        descriptor, self._descriptor = self.__dict__.get("_descriptor", -1), -1
        if descriptor >= 0:
            self._close(descriptor)


def _receive_board(duplicate: Any, num_slots: int) -> Board:
    return Board(duplicate.detach(), num_slots)


class _locked:  # noqa: N801  (used as a statement)
    """Keep other processes out, as long as they ask."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._descriptor, fcntl.LOCK_UN)


class SampleStore:
    """The samples of one key.

    Args:
        num_rows: of the dataset; samples of other indices are not kept.
        max_bytes: that all files of the key may take.
        board: of the loader.
        folder: in which files of the key lie; None for memory.
        files: in memory, one for each process that may write.
    """

    def __init__(
        self,
        num_rows: int,
        max_bytes: int,
        board: Board,
        folder: str | None,
        files: Sequence[SampleFile] = (),
    ) -> None:
        self._num_rows, self._max_bytes, self._board = num_rows, max_bytes, board
        self._folder, self._files = folder, list(files)
        self._slot = 0
        self._writer: SampleFileWriter | None = None
        self._opened_by = 0
        """The process that reads and writes here; one that it forks has not opened anything."""
        self._can_write = False
        self._known: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        files = [] if self._folder else self._files
        return SampleStore, (self._num_rows, self._max_bytes, self._board, self._folder, files)

    def open(self, slot: int) -> None:
        """Begin to read, and to write as the process of that number, unless another one does."""
        self._slot = slot
        if self._opened_by != os.getpid():
            self._opened_by, self._writer = os.getpid(), None
            self._entries, self._file_of = np.empty(0, ENTRY), np.empty(0, np.int64)
            self._is_checked = np.empty(0, bool)
            self._where = np.full(self._num_rows, -1, np.int32)
            for file in self._files:
                file.rewind()
            if self._folder is None:
                self._can_write = self._open_own(self._files[slot])
            else:
                self._files, self._known, self._can_write = [], set(), True
            self._look_at = 0.0
        self.refresh()

    def _open_own(self, file: SampleFile) -> bool:
        try:
            fcntl.lockf(file.entries, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._writer = SampleFileWriter(file)
        except OSError:  # a worker of an iterator that somebody still has
            return False
        return True

    @property
    def is_refused(self) -> bool:
        """Whether samples are neither kept nor read any more."""
        return self._board.is_refused

    @property
    def has_room(self) -> bool:
        """Whether this process may keep samples; one that it has forked may not."""
        return self._can_write and self._opened_by == os.getpid()

    def make_room(self, num_slots: int) -> None:
        """Have so many processes write, if they do so in memory. Raises OSError."""
        if self._folder is not None:
            os.makedirs(self._folder, exist_ok=True)
            return
        while len(self._files) < num_slots:
            self._files.append(SampleFile.in_memfd())

    def may_hold(self, row: int) -> bool:
        """Return whether the sample of a row could be kept."""
        return 0 <= row < self._num_rows

    def refuse(self, reason: str) -> bool:
        """Have no process keep or read any; return whether this was the first to say so."""
        return self._board.refuse(reason)

    def count_hit(self) -> None:
        """A sample was read in the place of making it."""
        self._board.count_hit(self._slot)

    def find(self, row: int) -> np.ndarray[Any, Any] | None:
        """Return the bytes of a row's sample, for the caller alone; None if none is kept.

        The row is one that `may_hold` is true of.
        """
        number = self._where[row]
        if number < 0:
            if time.monotonic() < self._look_at:
                return None
            self.refresh()
            number = self._where[row]
            if number < 0:
                return None
        file = self._files[self._file_of[number]]
        try:
            data = file.read(self._entries[number], checked=bool(self._is_checked[number]))
        except OSError:
            data = None
        self._is_checked[number] = data is not None
        if data is None:
            self._where[row] = -1  # it is made and written again
        return data

    def keep(self, row: int, parts: Sequence[bytes]) -> None:
        """Write a sample, if there is room."""
        try:
            if self.num_bytes() + sum(map(len, parts)) + ENTRY.itemsize > self._max_bytes:
                self._stop_writing()
                return
            if self._writer is None:
                self._writer = self._create()
            self._writer.add(row, parts)
        except OSError:  # a full disk
            self._stop_writing()

    def _stop_writing(self) -> None:
        self._can_write = False
        self._board.set_full(self._slot)

    def _create(self) -> SampleFileWriter:
        assert self._folder is not None
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        file = SampleFile.create(os.path.join(self._folder, name))
        self._known.add(name + ENTRIES)
        self._files.append(file)
        return SampleFileWriter(file)

    def num_bytes(self) -> int:
        """Return the bytes of all that is kept, whoever wrote it."""
        total = 0
        if self._folder is not None:
            with suppress(FileNotFoundError), os.scandir(self._folder) as found:
                for one in found:
                    with suppress(FileNotFoundError):  # they may be deleted at any time
                        total += one.stat().st_size
            return total
        return sum(
            os.fstat(one).st_size for file in self._files for one in (file.samples, file.entries)
        )

    def refresh(self) -> None:
        """Learn of what other processes have written."""
        if self._opened_by != os.getpid():
            return
        begin = time.monotonic()
        if self._folder is not None:
            self._find_files(self._folder)
        news, files = [], []
        for number, file in enumerate(self._files):
            entries = file.new_entries()
            if len(entries):
                news.append(entries)
                files.append(np.full(len(entries), number))
        if news:
            added = np.concatenate(news)
            first = len(self._entries)
            self._entries = np.concatenate([self._entries, added])
            self._file_of = np.concatenate([self._file_of, *files])
            self._is_checked = np.concatenate([self._is_checked, np.zeros(len(added), bool)])
            is_known = (added["row"] >= 0) & (added["row"] < self._num_rows)
            self._where[added["row"][is_known]] = first + np.flatnonzero(is_known)
        end = time.monotonic()
        self._look_at = end + _PATIENCE * (end - begin)

    def _find_files(self, folder: str) -> None:
        names: list[str] = []
        with suppress(FileNotFoundError):  # it has been deleted
            names = sorted(os.listdir(folder))
        for name in names:
            if name.endswith(ENTRIES) and name not in self._known:
                self._known.add(name)
                try:
                    file = SampleFile.open(os.path.join(folder, name.removesuffix(ENTRIES)))
                except OSError:  # it is being deleted, or not ours to read
                    continue
                self._files.append(file)
