"""Python objects as flat buffers in shared memory, by columns where they are alike.

A list of a million objects costs each worker a copy: reading an object raises its reference count,
and the system copies the page that the count is on. Buffers have no counts. Each kind of column
below knows where its buffers are, and makes a reader: a function from a row number to the object.
"""

from __future__ import annotations

import marshal
import pickle
from array import array
from itertools import accumulate, chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cputrain.data.sample_memory import SampleWriter

    Reader = Callable[[int], Any]

_PICKLE_PROTOCOL = 4
"""The one of which arrays come back with memory of their own."""

_MARSHAL_VERSION = 2
"""The last one whose bytes do not depend on reference counts."""

_MAX_FIELDS = 32
"""Fields of tuples above which bytes are decoded faster than so many columns are read."""

_ROWS_AT_A_TIME = 1 << 16
"""Rows that are encoded before they are written."""


class Span(NamedTuple):
    """Where a buffer lies in the shared memory."""

    begin: int
    end: int
    format: str
    """Of its elements, as `memoryview.cast` takes it."""

    def view(self, memory: memoryview) -> memoryview:
        """Return the buffer."""
        code: Any = self.format
        return memory[self.begin : self.end].cast(code)


class Numbers(NamedTuple):
    """Integers of 64 bits, or floats."""

    values: Span

    def reader(self, memory: memoryview) -> Reader:
        return self.values.view(memory).__getitem__


class Constants(NamedTuple):
    """Rows that are all one of a few constants: None, False and True."""

    codes: Span

    def reader(self, memory: memoryview) -> Reader:
        codes = self.codes.view(memory)
        return lambda row: _CONSTANTS[codes[row]]


_CONSTANTS = (None, False, True)


class Strings(NamedTuple):
    """Strings in UTF-8, one behind the other."""

    text: Span
    ends: Span

    def reader(self, memory: memoryview) -> Reader:
        text, ends = self.text.view(memory), self.ends.view(memory)
        return lambda row: str(text[ends[row] : ends[row + 1]], "utf-8", "surrogatepass")


class Bytes(NamedTuple):
    """Objects of type bytes, one behind the other."""

    data: Span
    ends: Span

    def reader(self, memory: memoryview) -> Reader:
        data, ends = self.data.view(memory), self.ends.view(memory)
        return lambda row: bytes(data[ends[row] : ends[row + 1]])


class Tuples(NamedTuple):
    """Tuples of one length: a column for each place."""

    fields: tuple[Column, ...]

    def reader(self, memory: memoryview) -> Reader:
        readers = [field.reader(memory) for field in self.fields]
        if len(readers) == 2:
            first, second = readers
            return lambda row: (first(row), second(row))
        return lambda row: tuple([read(row) for read in readers])


class Encoded(NamedTuple):
    """Objects of all other kinds, each encoded by itself."""

    data: Span
    ends: Span
    is_builtin: bool
    """Whether the objects are of Python's own types alone, and so encoded by `marshal`."""

    def reader(self, memory: memoryview) -> Reader:
        encoded = self.bytes_reader(memory)
        decode = self.decoder
        return lambda row: decode(encoded(row))

    def bytes_reader(self, memory: memoryview) -> Callable[[int], bytes]:
        """Return what reads a row's object as it is encoded."""
        data, ends = self.data.view(memory), self.ends.view(memory)
        return lambda row: data[ends[row] : ends[row + 1]].tobytes()

    @property
    def decoder(self) -> Callable[[bytes], Any]:
        """What makes an object of its bytes."""
        return marshal.loads if self.is_builtin else pickle.loads


Column = Numbers | Constants | Strings | Bytes | Tuples | Encoded


def encode_each(samples: Iterable[Any], *, is_builtin: bool) -> list[bytes]:
    """Return objects as bytes; raise what pickling raises."""
    if is_builtin:  # read three times as fast
        return list(map(marshal.dumps, samples, repeat(_MARSHAL_VERSION)))
    return list(map(pickle.dumps, samples, repeat(_PICKLE_PROTOCOL)))


def write_column(rows: Sequence[Any], writer: SampleWriter, *, is_builtin: bool) -> Column:
    """Write objects that nothing can change to shared memory; raise what pickling raises."""
    kinds = set(map(type, rows))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is int and min(rows) >= -(1 << 63) and max(rows) < 1 << 63:
        return Numbers(writer.add(array("q", rows)))
    if kind is float:
        return Numbers(writer.add(array("d", rows)))
    if kind is bool or kind is type(None):
        return Constants(writer.add(array("B", map(_CONSTANTS.index, rows))))
    if kind is str:
        return _write_strings(rows, writer)
    if kind is bytes:
        return Bytes(writer.add(b"".join(rows)), _write_ends(map(len, rows), writer))
    if kind is tuple:
        width = len(rows[0])
        if 0 < width <= _MAX_FIELDS and set(map(len, rows)) == {width}:
            fields = (
                write_column(field, writer, is_builtin=is_builtin)
                for field in _transposed(rows, width)
            )
            return Tuples(tuple(fields))
    return write_encoded(rows, writer, is_builtin=is_builtin)


def _transposed(rows: Sequence[Any], width: int) -> Iterable[list[Any]]:
    """Yield one column after the other, so that no two are in memory at the same time."""
    for place in range(width):
        yield [row[place] for row in rows]


def _write_strings(rows: Sequence[str], writer: SampleWriter) -> Strings:
    text = "".join(rows)
    if text.isascii():
        return Strings(writer.add(text.encode("ascii")), _write_ends(map(len, rows), writer))
    encoded = [row.encode("utf-8", "surrogatepass") for row in rows]
    return Strings(writer.add(b"".join(encoded)), _write_ends(map(len, encoded), writer))


def write_encoded(rows: Sequence[Any], writer: SampleWriter, *, is_builtin: bool) -> Encoded:
    """Write objects to shared memory, each by itself; raise what pickling raises."""
    lengths = array("Q")
    begin = writer.begin()
    for first in range(0, len(rows), _ROWS_AT_A_TIME):
        some = rows[first : first + _ROWS_AT_A_TIME]
        encoded = encode_each(some, is_builtin=is_builtin)
        lengths.extend(map(len, encoded))
        writer.extend(b"".join(encoded))
    data = writer.span_from(begin)
    return Encoded(data, _write_ends(lengths, writer), is_builtin)


def _write_ends(lengths: Iterable[int], writer: SampleWriter) -> Span:
    """Write where each row begins, and behind the last one its end."""
    ends = array("Q", accumulate(chain((0,), lengths)))
    return writer.add(array("I", ends) if ends[-1] < 1 << 32 else ends)
