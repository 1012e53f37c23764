"""Files of encoded samples: each is written by one process and read by all.

A writer appends an encoded sample to one file, and then an entry with its position to a second. So
an entry always refers to a complete sample, whenever the writer is killed. Entries and samples have
checksums, by which a reader skips what a crash or a full disk has left incomplete.
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
"""An entry: a sample's row, offset and size in bytes, its checksum, and the entry's checksum."""

_NUM_CHECKED = ENTRY.itemsize - 4
"""The number of bytes of an entry that its own checksum covers."""


class SampleFile:
    """The open files of one writer, in this process.

    Args:
        samples: The descriptor of the file of encoded samples.
        entries: The descriptor of the file of entries.
        has_checksums: Whether samples have checksums.
    """

    _close = staticmethod(os.close)

    def __init__(self, samples: int, entries: int, *, has_checksums: bool) -> None:
        self.samples, self.entries = samples, entries
        self.has_checksums = has_checksums
        """Whether samples have checksums; those in memory have none."""
        self._num_entries_read = 0

    @classmethod
    def in_memfd(cls) -> SampleFile:
        """Create both files in memory. Raises OSError."""
        samples = create_memfd()
        try:
            return cls(samples, create_memfd(), has_checksums=False)
        except OSError:
            os.close(samples)
            raise

    @classmethod
    def open(cls, path: str) -> SampleFile:
        """Open another process's files for reading. Raises OSError."""
        samples = os.open(path + SAMPLES, os.O_RDONLY | os.O_CLOEXEC)
        try:
            entries = os.open(path + ENTRIES, os.O_RDONLY | os.O_CLOEXEC)
            return cls(samples, entries, has_checksums=True)
        except OSError:
            os.close(samples)
            raise

    @classmethod
    def create(cls, path: str) -> SampleFile:
        """Create new files. Raises OSError."""
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
        """Have `new_entries` start at the first entry again."""
        self._num_entries_read = 0

    def new_entries(self) -> np.ndarray[Any, Any]:
        """Return the entries that have been added since the last call."""
        size = os.fstat(self.entries).st_size // ENTRY.itemsize
        if size <= self._num_entries_read:
            return np.empty(0, ENTRY)
        data = os.pread(
            self.entries,
            (size - self._num_entries_read) * ENTRY.itemsize,
            self._num_entries_read * ENTRY.itemsize,
        )
        self._num_entries_read += len(data) // ENTRY.itemsize
        return np.frombuffer(data, ENTRY, len(data) // ENTRY.itemsize)

    def read(self, entry: np.void, *, is_verified: bool) -> np.ndarray[Any, Any] | None:
        """Return the bytes of a sample; None if they are incomplete or a checksum differs.

        Args:
            entry: The sample's entry.
            is_verified: Whether an earlier call has compared the checksums.
        """
        if not is_verified and _with_checksum(entry)["entry"] != entry["entry"]:
            return None
        begin, size = int(entry["begin"]), int(entry["size"])
        if os.fstat(self.samples).st_size < begin + size:
            return None
        buffer = np.empty(size, np.uint8)
        view, num_read = memoryview(buffer.data), 0
        while num_read < size:
            count = os.preadv(self.samples, [view[num_read:]], begin + num_read)
            if not count:
                return None
            num_read += count
        is_verified = is_verified or not self.has_checksums
        return None if not is_verified and zlib.crc32(view) != entry["checksum"] else buffer

    def close(self) -> None:
        """Close both files."""
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
"""The suffixes of the names of the two files."""


class SampleFileWriter:
    """Appends samples to the files of this process. Raises OSError."""

    def __init__(self, file: SampleFile) -> None:
        self._file = file
        self._samples_end = os.fstat(file.samples).st_size
        num_entries = os.fstat(file.entries).st_size // ENTRY.itemsize
        os.ftruncate(file.entries, num_entries * ENTRY.itemsize)
        self._entries_end = num_entries * ENTRY.itemsize

    def add(self, row: int, parts: Sequence[bytes]) -> None:
        """Append a sample and then its entry.

        Args:
            row: The sample's index in the dataset.
            parts: The bytes of the encoded sample, in several parts.
        """
        begin, checksum = self._samples_end, 0
        for part in parts:
            if self._file.has_checksums:
                checksum = zlib.crc32(part, checksum)
            self._samples_end += _write_all(self._file.samples, part, self._samples_end)
        entry = np.zeros((), ENTRY)
        entry["row"], entry["begin"], entry["size"] = row, begin, self._samples_end - begin
        entry["checksum"] = checksum
        data = _with_checksum(entry).tobytes()
        self._entries_end += _write_all(self._file.entries, data, self._entries_end)


def _with_checksum(entry: Any) -> Any:
    """Return a copy of an entry with its own checksum."""
    copy = np.array(entry, ENTRY)
    copy["entry"] = zlib.crc32(copy.tobytes()[:_NUM_CHECKED])
    return copy


def _write_all(descriptor: int, data: bytes, begin: int) -> int:
    """Write bytes at an offset, in several writes if need be; return their number."""
    view, num_written = memoryview(data), 0
    while num_written < len(data):
        num_written += os.pwrite(descriptor, view[num_written:], begin + num_written)
    return num_written
