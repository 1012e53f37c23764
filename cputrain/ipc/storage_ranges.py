"""The byte ranges of storages that are sent, so that tensors which share memory go on sharing it.

torch sends the whole storage of every tensor. Here only the bytes under a tensor are sent, however
large its storage; where the bytes of two tensors overlap, their union is sent once for both.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any, NamedTuple

_ALIGNMENT = 16
"""Bytes; the width of the widest dtype. Tensors of any dtype can be laid on a union."""


class ByteRange(NamedTuple):
    """Bytes of one storage."""

    begin: int
    end: int

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether the two have a byte in common."""
        return self.begin < end and begin < self.end


class StorageRanges:
    """The ranges of one storage that tensors need.

    Args:
        storage: Kept, so that its identity is given to no other meanwhile.
        unions: Known to be needed: what `unions` of an earlier pass over the same tensors gave.
    """

    __slots__ = ("_ranges", "_scattered", "_unions", "contents", "has_overlap", "storage")

    def __init__(self, storage: Any, unions: tuple[ByteRange, ...] = ()) -> None:
        self.storage = storage
        self._unions = unions
        self._ranges: list[ByteRange] = []
        """Sent as they are, sorted; they do not overlap, unless `has_overlap`."""
        self._scattered: list[ByteRange] = []
        """Of strided tensors that use few of these bytes, and are sent without the rest."""
        self.contents: dict[Any, Any] = {}
        """What stands for the bytes of each."""
        self.has_overlap = False
        """Whether tensors have bytes in common that are not sent together."""

    def range_of(self, begin: int, end: int, width: int) -> ByteRange:
        """Return the range to be sent for a dense tensor of elements so many bytes wide."""
        result = self.containing(begin, end, width)
        if result is not None:
            return result
        for scattered in self._scattered:
            self.has_overlap = self.has_overlap or scattered.overlaps(begin, end)
        insort(self._ranges, result := ByteRange(begin, end))
        return result

    def containing(self, begin: int, end: int, width: int) -> ByteRange | None:
        """Return the range that is sent already, or as a union, and has all of these bytes."""
        for ranges in (self._unions, self._ranges):
            if not ranges:
                continue
            place = bisect_right(ranges, ByteRange(begin, 1 << 63))
            before = ranges[place - 1] if place else None
            if before is not None and end <= before.end and not (begin - before.begin) % width:
                return before
            self.has_overlap = (
                self.has_overlap
                or (before is not None and before.overlaps(begin, end))
                or (place < len(ranges) and ranges[place].overlaps(begin, end))
            )
        return None

    def add_scattered(self, begin: int, end: int) -> None:
        """Note a strided tensor whose elements are sent without what lies between them."""
        self._scattered.append(ByteRange(begin, end))

    def unions(self) -> tuple[ByteRange, ...]:
        """Return the ranges to be sent such that each tensor lies in one of them.

        Of strided tensors that use few of their bytes, only those are taken in that overlap a
        dense one.
        """
        dense = _united([*self._unions, *self._ranges])
        scattered = [one for one in self._scattered if any(each.overlaps(*one) for each in dense)]
        return _united([*dense, *scattered]) if scattered else dense


def _united(ranges: list[ByteRange]) -> tuple[ByteRange, ...]:
    united: list[ByteRange] = []
    for begin, end in sorted(ranges):
        aligned = begin - begin % _ALIGNMENT
        if united and aligned < united[-1].end:
            united[-1] = ByteRange(united[-1].begin, max(end, united[-1].end))
        else:
            united.append(ByteRange(aligned, end))
    return tuple(united)
