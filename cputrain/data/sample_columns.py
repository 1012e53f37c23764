"""Column encodings of Python objects in shared memory: flat buffers without reference counts.

Each worker would copy a list of a million objects: reading an object changes its reference count,
and the system copies the page (copy-on-write). Buffers have no reference counts. Each column class
stores the position of its buffers, and returns a reader: a function from a row to its object.
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
"""With this protocol, unpickled arrays have their own memory."""

_MARSHAL_VERSION = 2
"""The last version whose bytes do not depend on reference counts."""

_MAX_FIELDS = 32
"""Length of tuples above which decoding bytes is faster than reading one column per field."""

_CHUNK_ROWS = 1 << 16
"""The number of rows that are encoded in memory before they are written."""


class Span(NamedTuple):
    """The position of a buffer in the shared memory, in bytes."""

    begin: int
    end: int
    format: str
    """The format of the elements, as for `memoryview.cast`."""

    def view(self, memory: memoryview) -> memoryview:
        """Return a view of the buffer's elements."""
        code: Any = self.format
        return memory[self.begin : self.end].cast(code)


class NumberColumn(NamedTuple):
    """A column of 64-bit integers or of floats."""

    values: Span

    def reader(self, memory: memoryview) -> Reader:
        """Return a function from a row to its object."""
        return self.values.view(memory).__getitem__


class ConstantColumn(NamedTuple):
    """A column of None, or of False and True."""

    codes: Span

    def reader(self, memory: memoryview) -> Reader:
        """Return a function from a row to its object."""
        codes = self.codes.view(memory)
        return lambda row: _CONSTANTS[codes[row]]


_CONSTANTS = (None, False, True)


class StringColumn(NamedTuple):
    """A column of strings, concatenated in UTF-8."""

    text: Span
    ends: Span

    def reader(self, memory: memoryview) -> Reader:
        """Return a function from a row to its object."""
        text, ends = self.text.view(memory), self.ends.view(memory)
        return lambda row: str(text[ends[row] : ends[row + 1]], "utf-8", "surrogatepass")


class BytesColumn(NamedTuple):
    """A column of bytes objects, concatenated."""

    data: Span
    ends: Span

    def reader(self, memory: memoryview) -> Reader:
        """Return a function from a row to its object."""
        data, ends = self.data.view(memory), self.ends.view(memory)
        return lambda row: bytes(data[ends[row] : ends[row + 1]])


class TupleColumn(NamedTuple):
    """A column of tuples of one length, as one column for each field."""

    fields: tuple[Column, ...]

    def reader(self, memory: memoryview) -> Reader:
        """Return a function from a row to its object."""
        readers = [field.reader(memory) for field in self.fields]
        if len(readers) == 2:
            first, second = readers
            return lambda row: (first(row), second(row))
        return lambda row: tuple([read(row) for read in readers])


class EncodedColumn(NamedTuple):
    """A column of other objects, each encoded by `marshal` or `pickle`."""

    data: Span
    ends: Span
    is_builtin: bool
    """Whether the objects are of built-in types only, and encoded by `marshal`."""

    def reader(self, memory: memoryview) -> Reader:
        """Return a function from a row to its object."""
        encoded = self.bytes_reader(memory)
        decode = self.decoder
        return lambda row: decode(encoded(row))

    def bytes_reader(self, memory: memoryview) -> Callable[[int], bytes]:
        """Return a function from a row to its encoded object."""
        data, ends = self.data.view(memory), self.ends.view(memory)
        return lambda row: data[ends[row] : ends[row + 1]].tobytes()

    @property
    def decoder(self) -> Callable[[bytes], Any]:
        """The function that decodes an object."""
        return marshal.loads if self.is_builtin else pickle.loads


Column = NumberColumn | ConstantColumn | StringColumn | BytesColumn | TupleColumn | EncodedColumn


def encode_each(samples: Iterable[Any], *, is_builtin: bool) -> list[bytes]:
    """Return each object encoded as bytes; raise any error of pickling."""
    if is_builtin:  # marshal decodes three times as fast
        return list(map(marshal.dumps, samples, repeat(_MARSHAL_VERSION)))
    return list(map(pickle.dumps, samples, repeat(_PICKLE_PROTOCOL)))


def write_column(rows: Sequence[Any], writer: SampleWriter, *, is_builtin: bool) -> Column:
    """Write immutable objects to shared memory as a column; raise any error of pickling.

    Args:
        rows: The objects.
        writer: Of the shared memory.
        is_builtin: Whether all objects are of built-in types that `marshal` supports.
    """
    kinds = set(map(type, rows))
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is int and min(rows) >= -(1 << 63) and max(rows) < 1 << 63:
        return NumberColumn(writer.add(array("q", rows)))
    if kind is float:
        return NumberColumn(writer.add(array("d", rows)))
    if kind is bool or kind is type(None):
        return ConstantColumn(writer.add(array("B", map(_CONSTANTS.index, rows))))
    if kind is str:
        return _write_strings(rows, writer)
    if kind is bytes:
        return BytesColumn(writer.add(b"".join(rows)), _write_ends(map(len, rows), writer))
    if kind is tuple:
        width = len(rows[0])
        if 0 < width <= _MAX_FIELDS and set(map(len, rows)) == {width}:
            fields = (
                write_column(field, writer, is_builtin=is_builtin)
                for field in _transposed(rows, width)
            )
            return TupleColumn(tuple(fields))
    return write_encoded(rows, writer, is_builtin=is_builtin)


def _transposed(rows: Sequence[Any], width: int) -> Iterable[list[Any]]:
    """Yield the fields of tuples as lists, one list at a time to save memory."""
    for index in range(width):
        yield [row[index] for row in rows]


def _write_strings(rows: Sequence[str], writer: SampleWriter) -> StringColumn:
    text = "".join(rows)
    if text.isascii():
        return StringColumn(writer.add(text.encode("ascii")), _write_ends(map(len, rows), writer))
    encoded = [row.encode("utf-8", "surrogatepass") for row in rows]
    return StringColumn(writer.add(b"".join(encoded)), _write_ends(map(len, encoded), writer))


def write_encoded(rows: Sequence[Any], writer: SampleWriter, *, is_builtin: bool) -> EncodedColumn:
    """Write objects to shared memory, each encoded by itself; raise any error of pickling."""
    lengths = array("Q")
    begin = writer.align()
    for first in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[first : first + _CHUNK_ROWS]
        encoded = encode_each(chunk, is_builtin=is_builtin)
        lengths.extend(map(len, encoded))
        writer.extend(b"".join(encoded))
    data = writer.span_from(begin)
    return EncodedColumn(data, _write_ends(lengths, writer), is_builtin)


def _write_ends(lengths: Iterable[int], writer: SampleWriter) -> Span:
    """Write the offset of each row, and the end of the last."""
    ends = array("Q", accumulate(chain((0,), lengths)))
    return writer.add(array("I", ends) if ends[-1] < 1 << 32 else ends)
