"""Shared memory for samples: the loader writes it once, and workers map it."""

from __future__ import annotations

import mmap
import os
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any

from cputrain.data.sample_columns import Span
from cputrain.ipc.memfd import create_memfd

if TYPE_CHECKING:
    from array import array

_ALIGNMENT = 64


class SampleMemory:
    """Anonymous memory that workers map for reading.

    Args:
        descriptor: Of the memory.
        size: In bytes.
    """

    _close = staticmethod(os.close)

    def __init__(self, descriptor: int, size: int) -> None:
        self._descriptor = descriptor
        self.size = size

    def open(self) -> memoryview:
        """Map the memory and return a view of its bytes."""
        return memoryview(mmap.mmap(self._descriptor, self.size, prot=mmap.PROT_READ))

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (reduction.DupFd(self._descriptor), self.size)

    def __del__(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)


def _receive(duplicate: Any, size: int) -> SampleMemory:
    return SampleMemory(duplicate.detach(), size)


class SampleWriter:
    """Appends buffers to new shared memory; raises OSError if the system refuses."""

    def __init__(self) -> None:
        self._memory = SampleMemory(create_memfd(), 0)

    def add(self, buffer: bytes | array[Any]) -> Span:
        """Append a buffer and return its position."""
        begin = self.align()
        view = memoryview(buffer)
        self.extend(view.cast("B"))
        return self.span_from(begin)._replace(format=view.format)

    def align(self) -> int:
        """Add padding, and return the offset of the next buffer."""
        if padding := -self._memory.size % _ALIGNMENT:
            self.extend(bytes(padding))
        return self._memory.size

    def extend(self, data: bytes | memoryview) -> None:
        """Append bytes without padding."""
        view = memoryview(data)
        while view:
            written = os.write(self._memory._descriptor, view[: 1 << 30])
            self._memory.size += written
            view = view[written:]

    def span_from(self, begin: int) -> Span:
        """Return the position of the bytes since `begin`."""
        return Span(begin, self._memory.size, "B")

    def finish(self) -> SampleMemory:
        """Return the memory."""
        self.align()
        if not self._memory.size:
            self.extend(bytes(_ALIGNMENT))
        return self._memory
