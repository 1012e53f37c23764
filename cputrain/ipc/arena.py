"""Shared memory that outlives no process: blocks of one anonymous file, used again and again.

One process writes blocks, another reads them. The file has no name and its descriptor is handed
over once, so nothing is left behind whoever is killed, and no batch costs a descriptor or a
mapping. A block is used again when its last holder is gone: the storage of every tensor on it
holds a Lease, in the process that wrote it as in the one that reads it, and what a reader gives
back carries the generation it was lent in.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import resource
import struct
import threading
import weakref
from collections import Counter, deque
from multiprocessing import reduction
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cputrain.errors import ResourceError
from cputrain.ipc.memfd import create_memfd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SMALLEST = 8192
"""Bytes below which a block costs more than a copy through a pipe."""

_WRITTEN = 1 << 16
"""Bytes from which on the system writes faster than it finds memory page by page."""

_HUGE = 32 << 20
"""Bytes from which on several threads are worth their start."""

_PIECE = 4 << 20
"""Bytes that one of them copies at a time."""

KEPT_FREE = 64 << 20
"""Bytes of free blocks that an arena may keep for sizes that may come again."""

ALIGNED = mmap.PAGESIZE

_MAP_NORESERVE = 0x4000
"""Of Linux; Python has no name for it before 3.13."""

_MAP_FIXED = 0x10
"""Of Linux, on all its architectures that PyTorch runs on; Python has no name for it."""

_MAP_FAILED = ctypes.c_void_p(-1).value


class ArenaFullError(Exception):
    """No address is left for a block of this size; the caller sends the bytes another way."""


LENT = struct.Struct("<QQI")
"""A Lent on its way."""


def address_of(array: Any) -> int:
    """Where the bytes of an array begin in this process."""
    return int(array.__array_interface__["data"][0])


class Lent(NamedTuple):
    """A block as it is told to the reader."""

    offset: int
    size: int
    generation: int

    @property
    def token(self) -> tuple[int, int]:
        """As it is given back."""
        return self.offset, self.generation


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of a block. Every tensor and array on them holds this one object."""

    _ended: deque[tuple[int, int]] | None = None
    _token: tuple[int, int]
    _reader: Reader | None = None
    """Lives as long as a lease of it: it has to know when this process is forked."""

    @classmethod
    def on(
        cls, memory: ArenaMemory, lent: Lent, size: int, ended: deque[tuple[int, int]] | None
    ) -> Lease:
        """A lease that adds its token to `ended` when nothing holds it any more."""
        lease = cls.__new__(cls, size, np.uint8, memory.map, lent.offset)
        lease._ended = ended
        lease._token = lent.token
        return lease

    def holds_tensor(self) -> None:
        """Note that a tensor lies on it: tensors stay shared with forked children, as torch's."""
        if self._reader is not None:
            self._reader.note_tensor(self._token)

    def __del__(self) -> None:
        # appending to a deque is atomic: this runs in whichever thread drops the last reference
        if self._ended is not None:
            self._ended.append(self._token)


class ArenaMemory:
    """An anonymous file, mapped once: as wide as the machine's memory, and empty until written."""

    _descriptor = -1
    _close = staticmethod(os.close)
    """Kept here, as this module may be gone when the last of these is."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.map = mmap.mmap(descriptor, size)
        """Its own descriptor is a duplicate; the mapping lasts while any lease does."""
        self._descriptor = descriptor

    @classmethod
    def create(cls, size: int = 0) -> ArenaMemory:
        """New memory, as wide as the machine's; an error that says what the system refused."""
        size = size or _room_for_addresses()
        descriptor = -1
        try:
            descriptor = create_memfd()
            while True:
                try:
                    os.ftruncate(descriptor, size)
                    return cls(descriptor, size)
                except OSError:  # a limit on addresses or on file sizes: less will do
                    if size <= 1 << 26:
                        raise
                    size //= 4
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise ResourceError.of(error, "shared memory", "could not be made") from error

    def privately(self) -> ArenaMemory:
        """The same bytes; what is written through this mapping stays in this process."""
        private = ArenaMemory.__new__(ArenaMemory)
        private.size = self.size
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        private.map = mmap.mmap(self._descriptor, self.size, flags=flags, prot=writable)
        private._descriptor = os.dup(self._descriptor)
        return private

    def isolate(self, offset: int, size: int) -> None:
        """Keep what is written there from now on in this process, or in a child that inherits it.

        What is there already stays, as long as no other process writes to it.
        """
        self._map_again(offset, size, mmap.MAP_PRIVATE | _MAP_NORESERVE)

    def share(self, offset: int, size: int) -> None:
        """Show what all processes see there, again."""
        self._map_again(offset, size, mmap.MAP_SHARED)

    def _map_again(self, offset: int, size: int, flags: int) -> None:
        address = ctypes.c_void_p(self.address + offset)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        result = _libc_mmap()(
            address, _in_pages(size), protection, flags | _MAP_FIXED, self._descriptor, offset
        )
        if result in (None, _MAP_FAILED):
            number = ctypes.get_errno()
            error = OSError(number, os.strerror(number))
            raise ResourceError.of(error, "shared memory", "could not be mapped again") from error

    def forget(self, offset: int, size: int) -> None:
        """Of a private mapping: what this process has written there."""
        self.map.madvise(mmap.MADV_DONTNEED, offset, _in_pages(size))

    def read(self, offset: int, size: int) -> Any:
        """A copy of what all processes see there."""
        copied: Any = np.empty(size, np.uint8)
        done = 0
        while done < size:
            done += os.preadv(self._descriptor, [memoryview(copied)[done:]], offset + done)
        return copied

    def write(self, offset: int, source: Any, threads: int, *, fresh: bool) -> None:
        """Copy bytes there, in the way that finds memory for them fastest."""
        target = np.frombuffer(self.map, np.uint8, source.nbytes, offset)
        fresh = fresh and source.nbytes >= _WRITTEN and self._descriptor >= 0

        def copied(part: slice) -> None:
            np.copyto(target[part], source[part])

        def written(part: slice) -> None:
            self._pwrite(offset + part.start, memoryview(source[part]))

        # the system writes to a file for one thread at a time, faster than one that finds its
        # pages one by one; others can do so meanwhile
        first = written if fresh else copied
        if threads > 1 and source.nbytes >= _HUGE:
            parts = [slice(at, at + _PIECE) for at in range(0, source.nbytes, _PIECE)]
            _share_out(parts, first, *[copied] * (threads - 1))
        else:
            first(slice(0, source.nbytes))

    def _pwrite(self, offset: int, left: memoryview) -> None:
        while left:
            written = os.pwrite(self._descriptor, left, offset)
            left, offset = left[written:], offset + written

    def empty(self, offset: int, size: int) -> bool:
        """Give a part back to the system; false where the system knows no way."""
        try:
            self.map.madvise(mmap.MADV_REMOVE, offset, size)
        except OSError:
            return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # only while a process is started: its descriptor is duplicated into the child
        return _attach, (reduction.DupFd(self._descriptor), self.size)

    def fileno(self) -> int:
        """The descriptor, until it is closed."""
        return self._descriptor

    def close_descriptor(self) -> None:
        """Called by a process that neither sends it on nor maps parts of it again."""
        descriptor, self._descriptor = self._descriptor, -1  # never closed twice, if interrupted
        if descriptor >= 0:
            self._close(descriptor)

    __del__ = close_descriptor

    @property
    def address(self) -> int:
        """Where the mapping begins in this process."""
        return address_of(np.frombuffer(self.map, np.uint8, 1))


@functools.cache
def _libc_mmap() -> Any:
    """Return mmap of the C library: Python's cannot map at an address."""
    function = ctypes.CDLL(None, use_errno=True).mmap
    function.restype = ctypes.c_void_p
    function.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_long,
    )
    return function


def _in_pages(size: int) -> int:
    return -(-size // ALIGNED) * ALIGNED


def _share_out(parts: Iterable[slice], *ways: Callable[[slice], None]) -> None:
    """Have each part copied in one of these ways, each in a thread; the first in this one."""
    left = iter(parts)
    lock = threading.Lock()

    def work(copy: Callable[[slice], None]) -> None:
        while True:
            with lock:
                part = next(left, None)
            if part is None:
                return
            copy(part)

    helpers = []
    for way in ways[1:]:
        helper = threading.Thread(target=work, args=(way,))
        try:
            helper.start()
        except RuntimeError:  # the system has no more threads for us
            break
        helpers.append(helper)
    try:
        work(ways[0])
    finally:
        for helper in helpers:
            helper.join()


def _room_for_addresses() -> int:
    """As much as there is memory, and a small part of what addresses are limited to."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return size if limit == resource.RLIM_INFINITY else min(size, max(1 << 26, limit // 32))


def _attach(duplicate: Any, size: int) -> ArenaMemory:
    return ArenaMemory(duplicate.detach(), size)


class _Block:
    __slots__ = ("fresh", "generation", "holders", "offset", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self.generation = 0
        self.holders = 0
        self.fresh = True
        """Whether the system has yet to find memory for it."""


class Writer:
    """The writing side: hands out blocks, and uses again those that nobody holds."""

    def __init__(
        self, memory: ArenaMemory, ask: Callable[[], None] | None = None, *, threads: int = 1
    ) -> None:
        self._memory = memory
        self._threads = threads
        """How many may copy what is very large."""
        self._ask = ask
        """Finds out what has been given back; asked when no block is free."""
        self._begin = memory.address
        self._next = 0
        self._blocks: dict[int, _Block] = {}
        self._free: dict[int, list[_Block]] = {}
        self._hollow: set[int] = set()
        self._free_bytes = 0
        self._ended: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()  # a script's collate_fn may use threads

    def lease(self, size: int) -> Lease:
        """Fresh bytes to write to; they may be sent with `lend` while the lease is held."""
        with self._lock:
            block = self._take(size)
            block.fresh = False
            return self._hold(block, size)

    def lend(self, raw: memoryview, *, in_place: bool = True, lasting: bool = True) -> Lent:  # noqa: ARG002
        """A block that holds these bytes: their own, if they are a block's, or a copy."""
        source = np.frombuffer(raw, np.uint8)
        offset = address_of(source) - self._begin
        with self._lock:
            block = self._blocks.get(offset) if in_place else None
            if block is None or block.holders == 0 or source.nbytes > block.size:
                block = self._take(source.nbytes)
                self._memory.write(block.offset, source, self._threads, fresh=block.fresh)
                block.fresh = False
            block.holders += 1
            return Lent(block.offset, source.nbytes, block.generation)

    def keep(self, lent: list[Lent]) -> bool:
        """One more holder of each of these, if all of them still hold what was lent."""
        if not lent:
            return True
        with self._lock:
            blocks = [self._blocks.get(one.offset) for one in lent]
            for block, one in zip(blocks, lent, strict=True):
                if block is None or block.generation != one.generation or not block.holders:
                    return False
            for block in blocks:
                assert block is not None
                block.holders += 1
            return True

    def give_back(self, tokens: list[tuple[int, int]]) -> None:
        """The reader holds these no more."""
        if tokens:
            with self._lock:
                self._give_back(tokens)

    def _give_back(self, tokens: list[tuple[int, int]]) -> None:
        for offset, generation in tokens:
            block = self._blocks.get(offset)
            if block is None or block.generation != generation or block.holders == 0:
                continue  # of an earlier use: this block has been lent again since
            block.holders -= 1
            if block.holders == 0:
                block.generation += 1
                self._free.setdefault(block.size, []).append(block)
                self._free_bytes += block.size

    def _hold(self, block: _Block, size: int) -> Lease:
        block.holders += 1
        return Lease.on(self._memory, Lent(block.offset, size, block.generation), size, self._ended)

    def _take(self, size: int) -> _Block:
        if tokens := _drained(self._ended):
            self._give_back(tokens)
        wanted = _rounded(size)
        block = self._free_one(wanted)
        if block is None and self._ask is not None and self._blocks:
            self._ask()
            block = self._free_one(wanted)
        if block is not None:
            return block
        if self._next + wanted > self._memory.size:
            raise ArenaFullError
        if self._free_bytes > max(KEPT_FREE, 2 * wanted):
            self._trim()
        block = _Block(self._next, wanted)
        self._next += wanted
        self._blocks[block.offset] = block
        return block

    def _free_one(self, wanted: int) -> _Block | None:
        for fitting in (wanted, *(s for s in sorted(self._free) if wanted < s <= wanted * 5 // 4)):
            if blocks := self._free.get(fitting):
                block = blocks.pop()
                if block.offset in self._hollow:
                    self._hollow.discard(block.offset)
                else:
                    self._free_bytes -= block.size
                return block
        return None

    def _trim(self) -> None:
        """Give the memory of free blocks back to the system; their addresses stay."""
        for blocks in self._free.values():
            for block in blocks:
                if block.offset not in self._hollow:
                    if not self._memory.empty(block.offset, block.size):
                        return
                    self._hollow.add(block.offset)
                    block.fresh = True
                    self._free_bytes -= block.size


def _rounded(size: int) -> int:
    """The size of the block for so many bytes: eight sizes for each power of two."""
    step = max(ALIGNED, 1 << max(0, (size - 1).bit_length() - 4))
    return -(-size // step) * step


class _Fence:
    """Leases that processes have inherited: what they hold is used again once those are over."""

    def __init__(self, held: int) -> None:
        self.ended: deque[tuple[int, int]] = deque()
        self.held = held
        self.until: list[Callable[[], bool]] = []

    def returned(self) -> list[tuple[int, int]]:
        tokens = _drained(self.ended) if all(over() for over in self.until) else []
        self.held -= len(tokens)
        return tokens


def _drained(ended: deque[tuple[int, int]]) -> list[tuple[int, int]]:
    return [ended.popleft() for _ in range(len(ended))]


_readers: weakref.WeakSet[Reader | PrivateReader] = weakref.WeakSet()


class Reader:
    """The reading side: leases what was lent, and collects what may be given back."""

    def __init__(self, memory: ArenaMemory, *, most: float = 8) -> None:
        self._memory = memory
        self._most = most
        """How many times the blocks of one batch may be held before copies are given out."""
        self._ended: deque[tuple[int, int]] = deque()
        self._held = 0
        self._fences: list[_Fence] = []
        self._forked = False
        self._has_ended = False
        """Whether nothing is given back any more: leases may live on."""
        self._live: Counter[tuple[int, int]] = Counter()
        """How often each block, by its offset and generation, is on lease."""
        self._sizes: dict[int, int] = {}
        self._of_tensors: set[tuple[int, int]] = set()
        """Blocks on lease that tensors lie on."""
        self._isolated: dict[int, int] = {}
        """Bytes from each offset on that are mapped privately, since a fork."""
        self._lock = threading.Lock()  # batches may be taken over by the thread that pins them
        _readers.add(self)

    def leases(self, lent: list[Lent]) -> list[Any]:
        """The bytes that were lent, in place; copies of them if too many are being kept."""
        if not lent:
            return []
        most = self._most * len(lent) + 16
        with self._lock:
            self._held += len(lent)
            for one in lent:
                self._live[one.token] += 1
                self._sizes[one.offset] = one.size
                if one.offset in self._isolated and self._live[one.token] == 1:
                    self._memory.share(one.offset, self._isolated.pop(one.offset))
            if self._held - len(self._ended) > most or self._forked:
                return [self._copy(one) for one in lent]
            return [self._lease(one) for one in lent]

    def returned(self) -> list[tuple[int, int]]:
        """Tokens of what is held no more, once each."""
        if not self._ended and not self._fences:
            return []
        with self._lock:
            tokens = _drained(self._ended)
            for fence in self._fences:
                tokens += fence.returned()
            self._fences = [fence for fence in self._fences if fence.held]
            self._held -= len(tokens)
            for token in tokens:
                self._live[token] -= 1
                if self._live[token] <= 0:
                    del self._live[token]
                    self._of_tensors.discard(token)
            return tokens

    def end(self) -> None:
        """Nothing more is written: give back to the system all but what is still held."""
        self.returned()
        with self._lock:
            self._has_ended = True
            if self._forked or self._fences:
                self._fences = []
                return  # others may be reading the rest
            live = {offset for offset, _ in self._live}
            for offset in self._isolated.keys() - live:  # a private mapping cannot be emptied
                self._memory.share(offset, self._isolated.pop(offset))
            begin = 0
            for offset in sorted(live):
                if offset > begin:
                    self._memory.empty(begin, offset - begin)
                begin = offset + _in_pages(self._sizes[offset])
            if self._memory.size - begin >= ALIGNED:
                self._memory.empty(begin, self._memory.size - begin)

    def _lease(self, lent: Lent) -> Lease:
        lease = Lease.on(self._memory, lent, lent.size, self._ended)
        lease._reader = self
        return lease

    def note_tensor(self, token: tuple[int, int]) -> None:
        """Remember that a tensor lies on this block."""
        self._of_tensors.add(token)

    def _copy(self, lent: Lent) -> Any:
        copied = np.frombuffer(self._memory.map, np.uint8, lent.size, lent.offset).copy()
        self._ended.append(lent.token)
        return copied

    def _fence_fork(self, over: Callable[[], bool] | None = None) -> None:
        if self._has_ended:
            self.returned()
            self._isolate()
            return
        self._isolate()
        if over is None:
            # a child may read what is lent now for as long as it lives, and nobody will tell us
            # how long that is: none of it is used again, and what comes from now on is copied
            self._forked = True
            self._ended = deque(_drained(self._ended))
            self._fences = []
            self._held = len(self._ended)
            return
        held = self._held - len(self._ended) - sum(fence.held for fence in self._fences)
        if held:
            fence = _Fence(held)
            # those that have ended by now are inherited by nobody
            fence.ended, self._ended = self._ended, fence.ended
            self._ended.extend(_drained(fence.ended))
            self._fences.append(fence)
        for fence in self._fences:
            # what is over stays over, and would be kept for as long as the lease
            fence.until = [other for other in fence.until if other != over and not other()]
            fence.until.append(over)

    def _isolate(self) -> None:
        """Keep apart what this process and a child that is about to be forked write to arrays.

        Tensors stay shared with a child, as those are that torch sends between processes.
        """
        for offset, generation in list(self._live):
            if offset not in self._isolated and (offset, generation) not in self._of_tensors:
                self._memory.isolate(offset, self._sizes[offset])
                self._isolated[offset] = self._sizes[offset]


class PrivateReader:
    """Reads memory that is mapped privately: each lease is as it was lent, whoever wrote to it.

    Where addresses are limited, all that it gives out are copies.
    """

    def __init__(self, memory: ArenaMemory) -> None:
        try:
            self._memory, self._copies = memory.privately(), False
        except OSError:
            self._memory, self._copies = memory, True
        self._ended: deque[tuple[int, int]] = deque()
        self._live: Counter[tuple[int, int]] = Counter()
        self._leased: set[int] = set()
        """Offsets of blocks that this process may have written to."""
        _readers.add(self)

    def leases(self, lent: list[Lent]) -> list[Any]:
        """The bytes that were lent; those that are in use already, as copies."""
        if not lent:
            return []
        made: list[Any] = []
        for one in lent:
            token = one.token
            if self._copies or self._live[token]:
                made.append(self._memory.read(one.offset, one.size))
                continue
            if one.offset in self._leased:
                self._memory.forget(one.offset, one.size)
            self._live[token] += 1
            self._leased.add(one.offset)
            made.append(Lease.on(self._memory, one, one.size, self._ended))
        return made

    def returned(self) -> list[tuple[int, int]]:
        """Tokens of what is held no more, once each."""
        if not self._ended:
            return []
        tokens = _drained(self._ended)
        self._live.subtract(tokens)
        for token in tokens:
            if self._live[token] <= 0:
                del self._live[token]
        return tokens

    def read(self, lent: Lent) -> Any:
        """A copy of what was lent."""
        return self._memory.read(lent.offset, lent.size)

    def live(self) -> Counter[tuple[int, int]]:
        """What is held now; asked after `returned`."""
        return self._live

    def _fence_fork(self, over: Callable[[], bool] | None = None) -> None:  # noqa: ARG002
        # the child may read what is held now for as long as it lives: it is never given back
        ended, self._ended = self._ended, deque()
        self._ended.extend(_drained(ended))


class _OwnWorkers(threading.local):
    over: Callable[[], bool] | None = None


_own_workers = _OwnWorkers()


class starting_workers:  # noqa: N801  (used as a statement)
    """While workers of ours are forked: what they inherit they may read until `over` is true."""

    def __init__(self, over: Callable[[], bool]) -> None:
        self._over = over

    def __enter__(self) -> None:
        _own_workers.over = self._over

    def __exit__(self, *_: object) -> None:
        _own_workers.over = None


def _before_fork() -> None:
    for reader in list(_readers):
        reader._fence_fork(_own_workers.over)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
