"""One copy in memory of data that several jobs of `cputrain many` have loaded.

Each job loads its data as it would alone. When a DataLoader begins an epoch, or `fill` has filled
its tensors, the pages of large tensors and arrays are compared with those that other jobs have
stored in a file in memory. Where they are equal, the file is mapped over them: at the same
addresses, with the same bytes, copied on write. No object changes, and a job that writes to its
data writes to pages of its own.

Data is stored when a second job has it: what one job alone has stays as it is.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import mmap
import os
import struct
import sys
from contextlib import contextmanager

from cputrain.runtime.memory_pressure import MemoryPressure
from cputrain.variables import COMMON_DATA

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MIN_BYTES = 4 << 20
"""Smaller tensors are not worth a mapping."""

MAX_DEPTH = 8
"""Depth of attributes, and of items of lists, in which tensors are looked for."""

MAX_ITEMS = 64
"""Items of a list or dictionary that are looked at."""

RESERVE_BYTES = 512 << 20
"""Memory that remains available when data is stored."""

PAGE = mmap.PAGESIZE

ENTRY = struct.Struct("=32sQQ")
"""Key of some data, its offset in the file (0 while one job alone has it), and its size."""

NUM_ENTRIES = 4096

DATA_BEGIN = -(-ENTRY.size * NUM_ENTRIES // PAGE) * PAGE
"""Offset of the first data in the file."""

SAMPLE_BYTES = 4096
NUM_SAMPLES = 256
"""Data is found by the hash of some of its bytes, and then compared byte by byte."""

_IS_MMAPPED = 2
"""Flag of glibc in the size of a block that has a mapping of its own."""

_HEADER = struct.Struct("=QQ")
"""Header of a block of glibc's malloc: bytes before it in its mapping, and its size with flags."""


class CommonData:
    """The file of all jobs of a queue.

    Args:
        path: Path of the file, which the queue keeps open: /proc/PID/fd/NUMBER.

    Raises:
        OSError: The queue is gone.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self._pid = os.getpid()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.c_long,
        )  # fmt: skip
        self._libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        self._mapped: dict[int, int] = {}
        """Size of the mapped pages by their address."""
        self._pressure = MemoryPressure()

    def share(self, owner: Any) -> int:
        """Map the large tensors and arrays of an object; return the bytes that are mapped anew.

        Args:
            owner: A dataset, a tensor, or a list of tensors.
        """
        if os.getpid() != self._pid:
            return 0
        total = 0
        for address, size in set(_buffers(owner, MAX_DEPTH)):
            begin = -(-address // PAGE) * PAGE
            num_bytes = (address + size) // PAGE * PAGE - begin
            if num_bytes >= MIN_BYTES and self._mapped.get(begin) != num_bytes:
                total += self._share_pages(address, begin, num_bytes)
        return total

    def _share_pages(self, address: int, begin: int, num_bytes: int) -> int:
        if not self._has_own_mapping(address, begin + num_bytes):
            return 0
        key = self._key(begin, num_bytes)
        with self._locked():
            number, offset = self._find(key)
            if number < 0:
                self._add(key, num_bytes)
                return 0
            if not offset:
                offset = self._store(number, key, begin, num_bytes)
        if not offset or not self._is_equal(begin, offset, num_bytes):
            return 0
        flags = mmap.MAP_PRIVATE | _MAP_FIXED
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        result = self._libc.mmap(begin, num_bytes, protection, flags, self._fd, offset)
        if result != begin:
            return 0
        self._mapped[begin] = num_bytes
        return num_bytes

    def _has_own_mapping(self, address: int, end: int) -> bool:
        """Return whether memory is a block of glibc's malloc with a mapping of its own.

        Such a block is unmapped when it is freed, and never used for anything else. Blocks of the
        heap, of other allocators, and memory that is shared or a file's, are left alone.
        """
        if not _is_private_memory(address - _HEADER.size, end):
            return False
        before, size = _HEADER.unpack(ctypes.string_at(address - _HEADER.size, _HEADER.size))
        block = address - _HEADER.size - before
        total = (size & ~7) + before
        return (
            bool(size & _IS_MMAPPED)
            and before < PAGE
            and block % PAGE == 0
            and total % PAGE == 0
            and end <= block + total <= end + 4 * PAGE
        )

    def _key(self, begin: int, num_bytes: int) -> bytes:
        digest = hashlib.blake2b(num_bytes.to_bytes(8, "little"), digest_size=32)
        stride = max(SAMPLE_BYTES, num_bytes // NUM_SAMPLES // SAMPLE_BYTES * SAMPLE_BYTES)
        for offset in range(0, num_bytes, stride):
            digest.update(ctypes.string_at(begin + offset, min(SAMPLE_BYTES, num_bytes - offset)))
        return digest.digest()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # the kernel releases it if this process is killed
        try:
            yield
        finally:
            fcntl.flock(self._fd, fcntl.LOCK_UN)

    def _entries(self) -> Iterator[tuple[int, bytes, int, int]]:
        data = os.pread(self._fd, ENTRY.size * NUM_ENTRIES, 0)
        for number in range(len(data) // ENTRY.size):
            key, offset, size = ENTRY.unpack_from(data, number * ENTRY.size)
            if size:
                yield number, key, offset, size

    def _find(self, key: bytes) -> tuple[int, int]:
        """Return the number and the offset of the entry with a key; -1 and 0 if there is none."""
        return next(
            ((number, offset) for number, other_key, offset, _ in self._entries()
             if other_key == key),
            (-1, 0),
        )  # fmt: skip

    def _add(self, key: bytes, num_bytes: int) -> None:
        numbers = {number for number, *_ in self._entries()}
        free = next((number for number in range(NUM_ENTRIES) if number not in numbers), None)
        if free is not None:
            os.pwrite(self._fd, ENTRY.pack(key, 0, num_bytes), free * ENTRY.size)

    def _store(self, number: int, key: bytes, begin: int, num_bytes: int) -> int:
        """Store the data of this process; return its offset, or 0 if there is no memory for it."""
        available = self._pressure.available_bytes()
        if available is not None and available < num_bytes + RESERVE_BYTES:
            return 0
        ends = (offset + size for _, _, offset, size in self._entries() if offset)
        offset = max(ends, default=DATA_BEGIN)
        source = (ctypes.c_char * num_bytes).from_address(begin)
        view, written = memoryview(source), 0
        try:
            while written < num_bytes:
                written += os.pwrite(self._fd, view[written:], offset + written)
        except OSError:  # memory ran out meanwhile
            return 0
        os.pwrite(self._fd, ENTRY.pack(key, offset, num_bytes), number * ENTRY.size)
        return offset

    def _is_equal(self, begin: int, offset: int, num_bytes: int) -> bool:
        """Compare memory of this process with the file, byte by byte."""
        address = self._libc.mmap(
            None, num_bytes, mmap.PROT_READ, mmap.MAP_SHARED, self._fd, offset
        )
        if address == ctypes.c_void_p(-1).value:
            return False
        try:
            return bool(self._libc.memcmp(address, begin, num_bytes) == 0)
        finally:
            self._libc.munmap(address, num_bytes)


def create_common_data() -> int:
    """Create the file for the jobs of a queue, and return its descriptor.

    Raises:
        OSError: The system has no descriptor or no memory left.
    """
    return os.memfd_create("cputrain", os.MFD_CLOEXEC)


_MAP_FIXED = 0x10

_common: list[CommonData] = []
"""The file of the queue, opened at the first use; empty outside a queue."""


def open_common_data() -> None:
    """Open the file that the queue names, in a job of a queue."""
    path = os.environ.pop(COMMON_DATA, "")
    if not path:
        return
    try:
        _common.append(CommonData(path))
    except OSError:  # the queue is gone
        return


def share_with_jobs(owner: Any) -> None:
    """Hold the large tensors of a dataset once for all jobs of the queue, if there is one."""
    if _common:
        _common[0].share(owner)


def _buffers(owner: Any, depth: int) -> Iterator[tuple[int, int]]:
    """Yield address and size of each large buffer of an object's tensors and arrays."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(owner, torch.Tensor):
        if type(owner) is torch.Tensor and owner.is_cpu and owner.layout is torch.strided:
            storage = owner.untyped_storage()
            yield storage.data_ptr(), storage.nbytes()
    elif numpy is not None and isinstance(owner, numpy.ndarray):
        while isinstance(owner.base, numpy.ndarray):
            owner = owner.base
        if owner.flags.owndata and not owner.dtype.hasobject:
            yield owner.ctypes.data, owner.nbytes
    elif depth and isinstance(owner, list | tuple | dict):
        values = owner.values() if isinstance(owner, dict) else owner
        if len(values) <= MAX_ITEMS:
            for value in values:
                yield from _buffers(value, depth - 1)
    elif depth and hasattr(owner, "__dict__"):
        yield from _buffers(list(vars(owner).values())[:MAX_ITEMS], depth - 1)


def _is_private_memory(begin: int, end: int) -> bool:
    """Return whether a range of this process's memory is anonymous, private and not the heap."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            span, flags, _, _, inode, *name = line.split(maxsplit=5)
            low, _, high = span.partition("-")
            if int(high, 16) <= begin:
                continue
            if int(low, 16) > begin or flags != "rw-p" or inode != "0" or name:
                return False
            begin = int(high, 16)
            if begin >= end:
                return True
    return False
