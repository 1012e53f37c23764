"""The keys of a dict in shared memory, and a binary search for them by hash."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import numpy as np

from cputrain.data.sample_columns import write_column
from cputrain.data.sample_kinds import NotSharableError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cputrain.data.sample_columns import Column, Span
    from cputrain.data.sample_memory import SampleWriter


class KeyIndex(NamedTuple):
    """A dict's keys, all strings or all integers, with their rows sorted by hash."""

    is_string: bool
    keys: Column
    hashes: Span
    rows: Span

    def finder(self, memory: memoryview) -> KeyFinder:
        """Return a function that finds keys."""
        return KeyFinder(self, memory)


class KeyFinder:
    """A function from a key to its row."""

    def __init__(self, index: KeyIndex, memory: memoryview) -> None:
        self._is_string = index.is_string
        self._read = index.keys.reader(memory)
        self._hashes = index.hashes.view(memory)
        self._rows = index.rows.view(memory)

    def __call__(self, key: Any) -> int | None:
        """Return the row of a key, -1 if there is none, None if the key is of another type."""
        if self._is_string:
            if type(key) is not str:
                return None
            key_hash = _hash(key)
        elif isinstance(key, (int, np.integer)):
            key = key_hash = int(key)
        else:
            return None
        position = bisect_left(self._hashes, key_hash)
        while position < len(self._hashes) and self._hashes[position] == key_hash:
            row = self._rows[position]
            if self._read(row) == key:
                return row
            position += 1
        return -1

    def keys(self) -> Iterator[Any]:
        """Yield all keys, in the order of their rows."""
        return map(self._read, range(len(self._rows)))


def write_keys(keys: Sequence[Any], writer: SampleWriter) -> KeyIndex:
    """Write the keys of a dict, all strings or all integers; else raise NotSharableError."""
    kinds = set(map(type, keys))
    if kinds == {str}:
        hashes = np.fromiter(map(_hash, keys), np.int64, len(keys))
    elif kinds == {int} and min(keys) >= -(1 << 63) and max(keys) < 1 << 63:
        hashes = np.fromiter(keys, np.int64, len(keys))
    else:
        raise NotSharableError("its keys are neither all strings nor all integers of 64 bits")
    order = np.argsort(hashes, kind="stable")
    return KeyIndex(
        kinds == {str},
        write_column(keys, writer, is_builtin=True),
        writer.add(array("q", hashes[order].tobytes())),
        writer.add(array("q", order.astype(np.int64).tobytes())),
    )


def _hash(key: str) -> int:
    # unlike `hash`, the same in all processes
    return crc32(key.encode("utf-8", "surrogatepass"))
