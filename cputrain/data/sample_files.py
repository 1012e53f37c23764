"""Files of packed samples: each is written by one process, and read by all.

A writer appends to two files: a packed sample to one, and then an entry that says where it is to
the other. So an entry tells of a sample that is whole, whenever the writer ends. Entries and
samples carry checksums: what a crash or a full disk has left half-written is passed over.
"""

from __future__ import annotations

import os
import zlib
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

import numpy as np

from cputrain.ipc.memfd import create_memfd

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRY = np.dtype(
    [("row", "<i8"), ("begin", "<i8"), ("size", "<i8"), ("checksum", "<u4"), ("entry", "<u4")]
)
"""Of a sample: its row, where it lies, its checksum, and the entry's own."""

_CHECKED = ENTRY.itemsize - 4
"""Bytes of an entry that its own checksum is of."""


class SampleFile:
    """The two files of one writer, open in this process."""

    _close = staticmethod(os.close)

    def __init__(self, samples: int, entries: int, *, has_checksums: bool) -> None:
        self.samples, self.entries = samples, entries
        """Descriptors."""
        self.has_checksums = has_checksums
        """Whether samples have: not in memory, which ends with those who write to it."""
        self._num_read = 0

    @classmethod
    def in_memfd(cls) -> SampleFile:
        """Make both in memory. Raises OSError."""
        samples = create_memfd()
        try:
            return cls(samples, create_memfd(), has_checksums=False)
        except OSError:
            os.close(samples)
            raise

    @classmethod
    def open(cls, path: str) -> SampleFile:
        """Open those of another process to read them. Raises OSError."""
        samples = os.open(path + SAMPLES, os.O_RDONLY | os.O_CLOEXEC)
        try:
            entries = os.open(path + ENTRIES, os.O_RDONLY | os.O_CLOEXEC)
            return cls(samples, entries, has_checksums=True)
        except OSError:
            os.close(samples)
            raise

    @classmethod
    def create(cls, path: str) -> SampleFile:
        """Make new ones. Raises OSError."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        samples = os.open(path + SAMPLES, flags, 0o644)
        try:
            entries = os.open(path + ENTRIES, flags, 0o644)
            return cls(samples, entries, has_checksums=True)
        except OSError:
            os.close(samples)
            raise

    def __reduce__(self) -> tuple[Any, ...]:
        descriptors = reduction.DupFd(self.samples), reduction.DupFd(self.entries)
        return _receive, (*descriptors, self.has_checksums)

    def rewind(self) -> None:
        """Have all entries be new again."""
        self._num_read = 0

    def new_entries(self) -> np.ndarray[Any, Any]:
        """Return the entries that have been added since this was last asked."""
        size = os.fstat(self.entries).st_size // ENTRY.itemsize
        if size <= self._num_read:
            return np.empty(0, ENTRY)
        data = os.pread(
            self.entries, (size - self._num_read) * ENTRY.itemsize, self._num_read * ENTRY.itemsize
        )
        self._num_read += len(data) // ENTRY.itemsize
        return np.frombuffer(data, ENTRY, len(data) // ENTRY.itemsize)

    def read(self, entry: np.void, *, checked: bool) -> np.ndarray[Any, Any] | None:
        """Return the bytes of a sample; None if they are not those that were written."""
        if not checked and _entry(entry)["entry"] != entry["entry"]:
            return None
        begin, size = int(entry["begin"]), int(entry["size"])
        if os.fstat(self.samples).st_size < begin + size:
            return None
        buffer = np.empty(size, np.uint8)
        view, done = memoryview(buffer.data), 0
        while done < size:
            count = os.preadv(self.samples, [view[done:]], begin + done)
            if not count:
                return None
            done += count
        checked = checked or not self.has_checksums
        return None if not checked and zlib.crc32(view) != entry["checksum"] else buffer

    def close(self) -> None:
        """Close both."""
        for name in ("samples", "entries"):
            descriptor = getattr(self, name)
            setattr(self, name, -1)
            if descriptor >= 0:
                self._close(descriptor)

    def __del__(self) -> None:
        self.close()


def _receive(samples: Any, entries: Any, has_checksums: bool) -> SampleFile:
    return SampleFile(samples.detach(), entries.detach(), has_checksums=has_checksums)


SAMPLES, ENTRIES = ".samples", ".entries"
"""What the names of the two files end in."""


class SampleFileWriter:
    """Appends samples to files that nobody else writes to. Raises OSError."""

    def __init__(self, file: SampleFile) -> None:
        self._file = file
        self._end = os.fstat(file.samples).st_size
        num_entries = os.fstat(file.entries).st_size // ENTRY.itemsize
        os.ftruncate(file.entries, num_entries * ENTRY.itemsize)
        self._entries_end = num_entries * ENTRY.itemsize

    def add(self, row: int, parts: Sequence[bytes]) -> None:
        """Append a sample, which is in parts, and then its entry."""
        begin, checksum = self._end, 0
        for part in parts:
            if self._file.has_checksums:
                checksum = zlib.crc32(part, checksum)
            self._end += _write_all(self._file.samples, part, self._end)
        entry = np.zeros((), ENTRY)
        entry["row"], entry["begin"], entry["size"] = row, begin, self._end - begin
        entry["checksum"] = checksum
        whole = _entry(entry).tobytes()
        self._entries_end += _write_all(self._file.entries, whole, self._entries_end)


def _entry(entry: Any) -> Any:
    """Return the entry with its own checksum."""
    checked = np.array(entry, ENTRY)
    checked["entry"] = zlib.crc32(checked.tobytes()[:_CHECKED])
    return checked


def _write_all(descriptor: int, data: bytes, begin: int) -> int:
    view, done = memoryview(data), 0
    while done < len(data):
        done += os.pwrite(descriptor, view[done:], begin + done)
    return done
