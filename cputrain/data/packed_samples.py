"""The list, dict and array that replace a dataset's container in workers, on shared memory.

Indexing rebuilds a sample. A mutable sample remains the same object until its batch is done. It is
then compared with the encoded sample: if it was changed, or if something refers to it, it is kept,
as a list would have kept it.

Any other operation rebuilds all samples first, and then acts on an ordinary list, dict or array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cputrain.data.sample_columns import EncodedColumn, encode_each
from cputrain.data.sample_kinds import NotSharableError, require_sharable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cputrain.data.sample_columns import Column
    from cputrain.data.sample_keys import KeyIndex
    from cputrain.data.sample_memory import SampleMemory


class SharedSamples(NamedTuple):
    """Samples in shared memory; unpickling returns the opened container."""

    memory: SampleMemory
    column: Column
    num_rows: int
    is_mutable: bool
    """Whether samples can be changed."""
    container: type
    """The type of the script's container: list, dict or numpy.ndarray."""
    keys: KeyIndex | None
    """The keys, if the container is a dict."""

    def open(self) -> PackedList | PackedDict | PackedArray:
        """Map the memory, and return the container for a worker."""
        memory = self.memory.open()
        rows = _SharedRows(self.column, memory, self.num_rows, self.is_mutable)
        if self.keys is not None:
            return PackedDict(rows, self.keys.finder(memory))
        return PackedArray(rows) if self.container is np.ndarray else PackedList(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, tuple(self)


def _open(*fields: Any) -> Any:
    """Return the opened container of shared samples, when these are unpickled."""
    return SharedSamples(*fields).open()


class _SharedRows:
    """Rebuilds samples by row; returns the same object for a row while a batch is loaded."""

    def __init__(self, column: Column, memory: memoryview, num_rows: int, is_mutable: bool) -> None:
        self.num_rows = num_rows
        self._is_mutable = is_mutable
        if isinstance(column, EncodedColumn) and is_mutable:
            self._encoded = column.bytes_reader(memory)
            self._decode = column.decoder
            self._is_builtin = column.is_builtin
        else:
            self._read = column.reader(memory)
        self._current: dict[int, Any] = {}
        """Mutable samples of the current batch, by row."""
        self._current_bytes: list[bytes] = []
        """The same samples, encoded."""
        self._kept: dict[int, Any] = {}
        """Samples that the worker has changed or still refers to, by row."""

    def sample(self, row: int) -> Any:
        """Return the sample in a row, from 0 to `num_rows - 1`."""
        if not self._is_mutable:
            return self._read(row)
        if row in self._current:
            return self._current[row]
        if row in self._kept:
            return self._kept[row]
        if not self._current:
            _unreleased.append(self)
        encoded = self._encoded(row)
        self._current_bytes.append(encoded)
        sample = self._current[row] = self._decode(encoded)
        return sample

    def release(self) -> None:
        """Release the samples of the batch, except those that differ from the encoded ones."""
        samples, encoded = list(self._current.values()), self._current_bytes
        rows = list(self._current)
        self._current.clear()
        self._current_bytes = []
        if self._are_unreferenced(samples) and self._encode(samples) == encoded:
            return
        while rows:
            row, sample, before = rows.pop(), [samples.pop()], encoded.pop()
            if not self._are_unreferenced(sample) or self._is_changed(sample, before):
                self._kept[row] = sample[0]

    def _is_changed(self, sample: list[Any], before: bytes) -> bool:
        """Return whether the sample in a list of length 1 differs from its encoding."""
        after = self._encode(sample)
        return after != [before] and after != self._encode([self._decode(before)])

    def _encode(self, samples: list[Any]) -> list[bytes]:
        return encode_each(samples, is_builtin=self._is_builtin)

    def _are_unreferenced(self, samples: list[Any]) -> bool:
        """Return whether this list alone refers to the mutable objects in samples."""
        try:
            traits = require_sharable(samples, num_references=1)
        except NotSharableError:
            return False
        return traits.is_builtin or not self._is_builtin


_unreleased: list[_SharedRows] = []


def release_samples() -> None:
    """Release the samples of the last batch in all containers, except changed ones."""
    while _unreleased:
        _unreleased.pop().release()


class PackedList(list[Any]):
    """A list that rebuilds samples when they are indexed."""

    __slots__ = ("_rows",)

    def __init__(self, rows: _SharedRows) -> None:
        self._rows: _SharedRows | None = rows

    def __getitem__(self, index: Any) -> Any:
        rows = self._rows
        if rows is None:
            return list.__getitem__(self, index)
        row = index
        if type(row) is not int:
            if isinstance(index, slice):
                return [rows.sample(row) for row in range(*index.indices(rows.num_rows))]
            if not hasattr(type(index), "__index__"):
                return _EMPTY[index]  # raises the error of a list
            row = index.__index__()
        if row < 0:
            row += rows.num_rows
        return rows.sample(row) if 0 <= row < rows.num_rows else _EMPTY[0]

    def __len__(self) -> int:
        return list.__len__(self) if self._rows is None else self._rows.num_rows

    def __iter__(self) -> Iterator[Any]:
        row = 0
        while row < len(self):
            yield self[row]
            row += 1

    def __radd__(self, before: Any) -> Any:
        return before + list(self) if isinstance(before, list) else NotImplemented

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        return list, (list(self),)

    def _materialize(self) -> None:
        """Rebuild all samples, and become an ordinary list."""
        rows, self._rows = self._rows, None
        if rows is not None:
            list.extend(self, map(rows.sample, range(rows.num_rows)))


_EMPTY: list[Any] = []


class PackedDict(dict[Any, Any]):
    """A dict that rebuilds samples when they are indexed."""

    __slots__ = ("_find", "_rows")

    def __init__(self, rows: _SharedRows, find: Callable[[Any], int | None]) -> None:
        self._rows: _SharedRows | None = rows
        self._find = find

    def __getitem__(self, key: Any) -> Any:
        rows = self._rows
        row = None if rows is None else self._find(key)
        if rows is None or row is None:
            self._materialize()  # a key of another type may equal one of the keys
            return dict.__getitem__(self, key)
        if row < 0:
            raise KeyError(key)
        return rows.sample(row)

    def __contains__(self, key: Any) -> bool:
        row = None if self._rows is None else self._find(key)
        if row is None:
            self._materialize()
            return dict.__contains__(self, key)
        return row >= 0

    def get(self, key: Any, default: Any = None, /) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (`get` would call itself)

    def __len__(self) -> int:
        return dict.__len__(self) if self._rows is None else self._rows.num_rows

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        self._materialize()
        return dict, (list(dict.items(self)),)

    def _materialize(self) -> None:
        """Rebuild all samples, and become an ordinary dict."""
        rows, self._rows = self._rows, None
        if rows is not None:
            keys = self._find.keys()  # type: ignore[attr-defined]
            dict.update(self, zip(keys, map(rows.sample, range(rows.num_rows)), strict=True))


def _materializing(kind: type, name: str) -> Any:
    """Return the method of a base class, preceded by the rebuilding of all samples."""
    method = getattr(kind, name)

    def materialized(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._materialize()
        return method(self, *args, **kwargs)

    materialized.__name__ = name
    return materialized


_UNCHANGED_METHODS = ("__new__", "__init__", "__getattribute__", "__class_getitem__", "fromkeys")

for _kind, _base in ((PackedList, list), (PackedDict, dict)):
    for _name, _method in vars(_base).items():
        if callable(_method) and _name not in (*vars(_kind), *_UNCHANGED_METHODS):
            setattr(_kind, _name, _materializing(_base, _name))


class PackedArray:
    """A stand-in for an array of objects that rebuilds samples when they are indexed."""

    def __init__(self, rows: _SharedRows) -> None:
        self._rows = rows
        self._array: Any = None

    def __getitem__(self, index: Any) -> Any:
        rows = self._rows
        if self._array is None and isinstance(index, (int, np.integer)) and index is not True:
            row = int(index)
            if row < 0:
                row += rows.num_rows
            if 0 <= row < rows.num_rows and index is not False:
                return rows.sample(row)
        return self._materialized()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._materialized()[index] = value

    def __len__(self) -> int:
        return self._rows.num_rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._materialized())

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(self._materialized(), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._materialized(), name)

    def __reduce__(self) -> Any:
        return self._materialized().__reduce__()

    def _materialized(self) -> Any:
        """Return the array with all samples, which is created at the first call."""
        if self._array is None:
            array = np.empty(self._rows.num_rows, dtype=object)
            for row in range(self._rows.num_rows):
                array[row] = self._rows.sample(row)
            self._array = array
        return self._array
