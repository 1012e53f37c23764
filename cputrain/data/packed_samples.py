"""What a dataset's `__getitem__` finds in a worker in place of its list, dict or array of objects.

Samples are rebuilt from shared memory when they are asked for. One that can be changed is the same
object for as long as its batch is made. After that it is compared with what is in shared memory: if
it was changed, or something holds it, it is kept, as a worker's own list would have kept it.

Code that does anything but take a sample gets what it would have got: all samples are rebuilt then,
and the list or dict has them as any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cputrain.data.sample_columns import Encoded, encode_each
from cputrain.data.sample_kinds import NotSharableError, require_sharable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cputrain.data.sample_columns import Column
    from cputrain.data.sample_keys import KeyIndex
    from cputrain.data.sample_memory import SampleMemory


class SharedSamples(NamedTuple):
    """Samples that were laid out in shared memory; a worker opens them, or unpickles them open."""

    memory: SampleMemory
    column: Column
    num_rows: int
    can_change: bool
    """Whether a sample can be changed by whoever takes it."""
    container: type
    """What holds them in the script: list, dict or numpy.ndarray."""
    keys: KeyIndex | None
    """Of a dict."""

    def open(self) -> PackedList | PackedDict | PackedArray:
        """Return what takes the place of the container in a worker."""
        memory = self.memory.open()
        rows = _Rows(self.column, memory, self.num_rows, self.can_change)
        if self.keys is not None:
            return PackedDict(rows, self.keys.finder(memory))
        return PackedArray(rows) if self.container is np.ndarray else PackedList(rows)

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, tuple(self)


def _open(*fields: Any) -> Any:
    return SharedSamples(*fields).open()


class _Rows:
    """Samples by their row numbers, each the same object while a batch is made."""

    def __init__(self, column: Column, memory: memoryview, num_rows: int, can_change: bool) -> None:
        self.num_rows = num_rows
        self._can_change = can_change
        if isinstance(column, Encoded) and can_change:
            self._encoded = column.bytes_reader(memory)
            self._decode = column.decoder
            self._is_builtin = column.is_builtin
        else:
            self._read = column.reader(memory)
        self._handed: dict[int, Any] = {}
        """Of the batch that is being made."""
        self._handed_bytes: list[bytes] = []
        """The same samples as they were encoded."""
        self._kept: dict[int, Any] = {}
        """Changed by the worker, or held by something in it."""

    def sample(self, row: int) -> Any:
        """Return the sample in a row, from 0 to `num_rows - 1`."""
        if not self._can_change:
            return self._read(row)
        if row in self._handed:
            return self._handed[row]
        if row in self._kept:
            return self._kept[row]
        if not self._handed:
            _unsettled.append(self)
        encoded = self._encoded(row)
        self._handed_bytes.append(encoded)
        sample = self._handed[row] = self._decode(encoded)
        return sample

    def release(self) -> None:
        """Keep the samples that would differ, were they rebuilt."""
        samples, encoded = list(self._handed.values()), self._handed_bytes
        rows = list(self._handed)
        self._handed.clear()
        self._handed_bytes = []
        if self._are_alone(samples) and self._encode(samples) == encoded:
            return
        while rows:
            row, sample, before = rows.pop(), [samples.pop()], encoded.pop()
            if not self._are_alone(sample) or self._is_changed(sample, before):
                self._kept[row] = sample[0]

    def _is_changed(self, sample: list[Any], before: bytes) -> bool:
        after = self._encode(sample)
        return after != [before] and after != self._encode([self._decode(before)])

    def _encode(self, samples: list[Any]) -> list[bytes]:
        return encode_each(samples, is_builtin=self._is_builtin)

    def _are_alone(self, samples: list[Any]) -> bool:
        """Return whether nothing but this list holds what can be changed of samples."""
        try:
            kinds = require_sharable(samples, num_holders=1)
        except NotSharableError:
            return False
        return kinds.is_builtin or not self._is_builtin


_unsettled: list[_Rows] = []


def release_samples() -> None:
    """A batch has been made and sent: forget its samples, but for those that were changed."""
    while _unsettled:
        _unsettled.pop().release()


class PackedList(list[Any]):
    """A list whose samples are rebuilt when they are taken."""

    __slots__ = ("_rows",)

    def __init__(self, rows: _Rows) -> None:
        self._rows: _Rows | None = rows

    def __getitem__(self, index: Any) -> Any:
        rows = self._rows
        if rows is None:
            return list.__getitem__(self, index)
        row = index
        if type(row) is not int:
            if isinstance(index, slice):
                return [rows.sample(row) for row in range(*index.indices(rows.num_rows))]
            if not hasattr(type(index), "__index__"):
                return _EMPTY[index]  # raises what a list raises
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

    def _thaw(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            list.extend(self, map(rows.sample, range(rows.num_rows)))


_EMPTY: list[Any] = []


class PackedDict(dict[Any, Any]):
    """A dict whose samples are rebuilt when they are taken by their keys."""

    __slots__ = ("_find", "_rows")

    def __init__(self, rows: _Rows, find: Callable[[Any], int | None]) -> None:
        self._rows: _Rows | None = rows
        self._find = find

    def __getitem__(self, key: Any) -> Any:
        rows = self._rows
        row = None if rows is None else self._find(key)
        if rows is None or row is None:
            self._thaw()  # another type of key may be equal to one of ours
            return dict.__getitem__(self, key)
        if row < 0:
            raise KeyError(key)
        return rows.sample(row)

    def __contains__(self, key: Any) -> bool:
        row = None if self._rows is None else self._find(key)
        if row is None:
            self._thaw()
            return dict.__contains__(self, key)
        return row >= 0

    def get(self, key: Any, default: Any = None, /) -> Any:
        return self[key] if key in self else default  # noqa: SIM401 (it is what that calls)

    def __len__(self) -> int:
        return dict.__len__(self) if self._rows is None else self._rows.num_rows

    def __reduce_ex__(self, _protocol: Any) -> tuple[Any, ...]:
        self._thaw()
        return dict, (list(dict.items(self)),)

    def _thaw(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            keys = self._find.keys()  # type: ignore[attr-defined]
            dict.update(self, zip(keys, map(rows.sample, range(rows.num_rows)), strict=True))


def _thawing(kind: type, name: str) -> Any:
    method = getattr(kind, name)

    def thawed(self: Any, *args: Any, **kwargs: Any) -> Any:
        self._thaw()
        return method(self, *args, **kwargs)

    thawed.__name__ = name
    return thawed


_AS_THEY_ARE = ("__new__", "__init__", "__getattribute__", "__class_getitem__", "fromkeys")

for _kind, _base in ((PackedList, list), (PackedDict, dict)):
    for _name, _method in vars(_base).items():
        if callable(_method) and _name not in (*vars(_kind), *_AS_THEY_ARE):
            setattr(_kind, _name, _thawing(_base, _name))


class PackedArray:
    """Stands for an array of objects: a sample is rebuilt when it is taken by its number."""

    def __init__(self, rows: _Rows) -> None:
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
        return self._thawed()[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self._thawed()[index] = value

    def __len__(self) -> int:
        return self._rows.num_rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self._thawed())

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return np.asarray(self._thawed(), *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._thawed(), name)

    def __reduce__(self) -> Any:
        return self._thawed().__reduce__()

    def _thawed(self) -> Any:
        if self._array is None:
            array = np.empty(self._rows.num_rows, dtype=object)
            for row in range(self._rows.num_rows):
                array[row] = self._rows.sample(row)
            self._array = array
        return self._array
