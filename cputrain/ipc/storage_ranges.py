"""Byte ranges of storages to send, so that tensors that share memory share it in the receiver too.

torch sends a tensor's whole storage. Here only the bytes that the tensor uses are sent, however
large its storage; where the bytes of two tensors overlap, their union is sent once for both.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import Any, NamedTuple

_ALIGNMENT = 16
"""Bytes of the widest dtype; unions begin at multiples of it, so that every dtype can use them."""


class ByteRange(NamedTuple):
    """Range of bytes in a storage."""

    begin: int
    end: int

    def overlaps(self, begin: int, end: int) -> bool:
        """Return whether this range and another one have a byte in common."""
        return self.begin < end and begin < self.end


class StorageRanges:
    """Ranges of one storage that the tensors of a message use.

    Args:
        storage: Kept alive, so that no other storage gets its address meanwhile.
        unions: Result of `unions` in an earlier pass over the same tensors.
    """

    __slots__ = ("_ranges", "_scattered", "_unions", "contents", "has_overlap", "storage")

    def __init__(self, storage: Any, unions: tuple[ByteRange, ...] = ()) -> None:
        self.storage = storage
        self._unions = unions
        self._ranges: list[ByteRange] = []
        """Ranges of dense tensors, sorted; they do not overlap, unless `has_overlap`."""
        self._scattered: list[ByteRange] = []
        """Spans of strided tensors that use few of the bytes, and are sent as their elements."""
        self.contents: dict[Any, Any] = {}
        """Pickled bytes by range, or by the strided tensor that they are the elements of."""
        self.has_overlap = False
        """Whether tensors have bytes in common that are sent in different ranges."""

    def range_of(self, begin: int, end: int, width: int) -> ByteRange:
        """Return the range to send for a dense tensor, and add it if it is new.

        Args:
            width: Bytes of an element.
        """
        range_ = self.containing(begin, end, width)
        if range_ is not None:
            return range_
        for scattered in self._scattered:
            self.has_overlap = self.has_overlap or scattered.overlaps(begin, end)
        insort(self._ranges, range_ := ByteRange(begin, end))
        return range_

    def containing(self, begin: int, end: int, width: int) -> ByteRange | None:
        """Return a known range or union that contains these bytes, aligned to the element width."""
        for ranges in (self._unions, self._ranges):
            if not ranges:
                continue
            index = bisect_right(ranges, ByteRange(begin, 1 << 63))
            previous = ranges[index - 1] if index else None
            if (
                previous is not None
                and end <= previous.end
                and not (begin - previous.begin) % width
            ):
                return previous
            self.has_overlap = (
                self.has_overlap
                or (previous is not None and previous.overlaps(begin, end))
                or (index < len(ranges) and ranges[index].overlaps(begin, end))
            )
        return None

    def add_scattered(self, begin: int, end: int) -> None:
        """Add the span of a strided tensor of which only the elements are sent."""
        self._scattered.append(ByteRange(begin, end))

    def unions(self) -> tuple[ByteRange, ...]:
        """Return ranges that do not overlap and contain each tensor's bytes.

        Spans of strided tensors are included only if they overlap a dense tensor's range.
        """
        dense = _merge_ranges([*self._unions, *self._ranges])
        scattered = [
            span for span in self._scattered if any(range_.overlaps(*span) for range_ in dense)
        ]
        return _merge_ranges([*dense, *scattered]) if scattered else dense


def _merge_ranges(ranges: list[ByteRange]) -> tuple[ByteRange, ...]:
    """Align ranges and merge those that overlap."""
    merged: list[ByteRange] = []
    for begin, end in sorted(ranges):
        aligned = begin - begin % _ALIGNMENT
        if merged and aligned < merged[-1].end:
            merged[-1] = ByteRange(merged[-1].begin, max(end, merged[-1].end))
        else:
            merged.append(ByteRange(aligned, end))
    return tuple(merged)
