"""Arena allocator in shared memory: blocks of one memfd, which readers lease and writers reuse.

One process writes blocks, another reads them. The file has no name and its descriptor is sent
once, so a killed process leaves nothing behind, and a batch costs no descriptor and no mapping.
The storage of every tensor on a block holds a `Lease`, in the writer's process and in the reader's.
The writer reuses a block when its last holder has released it. A release names the block's
generation, so that a late one does not free a block that has been reused since.
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

MIN_BLOCK_BYTES = 8192
"""Bytes below which a block costs more than a copy through a pipe."""

_MIN_PWRITE_BYTES = 1 << 16
"""Bytes from which on pwrite to pages without memory is faster than a page fault for each."""

_MIN_PARALLEL_BYTES = 32 << 20
"""Bytes from which on a copy by several threads saves more than starting them costs."""

_PIECE_BYTES = 4 << 20
"""Bytes that a thread of a parallel copy copies at a time."""

MAX_FREE_BYTES = 64 << 20
"""Bytes of free blocks whose pages are kept for later blocks of the same sizes."""

PAGE_BYTES = mmap.PAGESIZE
"""Bytes of a page; blocks begin at multiples of it."""

_MAP_NORESERVE = 0x4000
"""Flag of mmap on Linux; Python has no name for it before 3.13."""

_MAP_FIXED = 0x10
"""Flag of mmap on every Linux architecture that PyTorch runs on; Python has no name for it."""

_MAP_FAILED = ctypes.c_void_p(-1).value


class ArenaFullError(Exception):
    """The arena has no space for a block of this size; the caller sends the bytes by a pipe."""


BLOCK_REF = struct.Struct("<QQI")
"""Encoding of a `BlockRef` in messages between processes."""


def address_of(array: Any) -> int:
    """Return the address of an array's first byte in this process."""
    return int(array.__array_interface__["data"][0])


class BlockRef(NamedTuple):
    """Reference to a block that the writer has lent to a reader."""

    offset: int
    """Offset of the block in the arena, in bytes."""
    size: int
    """Bytes that were lent; the block may be larger."""
    generation: int
    """How often the block had been freed when it was lent."""

    @property
    def token(self) -> tuple[int, int]:
        """Offset and generation, with which the reader releases the block."""
        return self.offset, self.generation


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of a block as an array; the block is released when the last reference to it is gone.

    Every tensor and array on the bytes refers to the same object.
    """

    _ended_tokens: deque[tuple[int, int]] | None = None
    _token: tuple[int, int]
    _reader: Reader | None = None
    """Kept alive by its leases: it must see every fork while there are some."""

    @classmethod
    def create(
        cls,
        memory: ArenaMemory,
        ref: BlockRef,
        size: int,
        ended_tokens: deque[tuple[int, int]] | None,
    ) -> Lease:
        """Create a lease that appends its token to `released` when its last reference is gone."""
        lease = cls.__new__(cls, size, np.uint8, memory.map, ref.offset)
        lease._ended_tokens = ended_tokens
        lease._token = ref.token
        return lease

    def mark_tensor(self) -> None:
        """Note that a tensor uses the block: a fork does not make such a block private.

        torch's own shared tensors stay shared with forked children as well.
        """
        if self._reader is not None:
            self._reader.mark_tensor(self._token)

    def __del__(self) -> None:
        # runs in the thread that drops the last reference; appending to a deque is atomic
        if self._ended_tokens is not None:
            self._ended_tokens.append(self._token)


class ArenaMemory:
    """Sparse memfd with one mapping, by default as large as the machine's memory."""

    _descriptor = -1
    _close = staticmethod(os.close)
    """Kept by the class: at the interpreter's exit, this module may be cleared before `__del__`."""

    def __init__(self, descriptor: int, size: int) -> None:
        self.size = size
        self.map = mmap.mmap(descriptor, size)
        """The mapping, which duplicates the descriptor; every lease keeps it alive."""
        self._descriptor = descriptor

    @classmethod
    def create(cls, size: int = 0) -> ArenaMemory:
        """Create the memfd and map it.

        Args:
            size: In bytes; 0 means the machine's memory, or less under a limit on addresses.

        Raises:
            ResourceError: The system refused the descriptor, the file's size or the mapping.
        """
        size = size or _default_size_bytes()
        descriptor = -1
        try:
            descriptor = create_memfd()
            while True:
                try:
                    os.ftruncate(descriptor, size)
                    return cls(descriptor, size)
                except OSError:  # a limit on addresses or on file sizes: retry with less
                    if size <= 1 << 26:
                        raise
                    size //= 4
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise ResourceError.of(error, "shared memory", "could not be made") from error

    def map_private(self) -> ArenaMemory:
        """Return a copy-on-write mapping (MAP_PRIVATE): this process's writes stay in it."""
        private = ArenaMemory.__new__(ArenaMemory)
        private.size = self.size
        writable = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_PRIVATE | _MAP_NORESERVE
        private.map = mmap.mmap(self._descriptor, self.size, flags=flags, prot=writable)
        private._descriptor = os.dup(self._descriptor)
        return private

    def make_private(self, offset: int, size: int) -> None:
        """Remap a range copy-on-write: later writes stay in this process, or in a forked child.

        Its present bytes stay visible, as long as no other process overwrites them.
        """
        self._remap(offset, size, mmap.MAP_PRIVATE | _MAP_NORESERVE)

    def make_shared(self, offset: int, size: int) -> None:
        """Remap a range shared again; private writes to it are lost."""
        self._remap(offset, size, mmap.MAP_SHARED)

    def _remap(self, offset: int, size: int, flags: int) -> None:
        """Map a range again at its present address, with other flags of mmap."""
        address = ctypes.c_void_p(self.address + offset)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        result = _libc_mmap()(
            address,
            _round_up_to_pages(size),
            protection,
            flags | _MAP_FIXED,
            self._descriptor,
            offset,
        )
        if result in (None, _MAP_FAILED):
            number = ctypes.get_errno()
            error = OSError(number, os.strerror(number))
            raise ResourceError.of(error, "shared memory", "could not be mapped again") from error

    def discard_private_writes(self, offset: int, size: int) -> None:
        """Drop this process's private pages of a range, which then shows the shared bytes again."""
        self.map.madvise(mmap.MADV_DONTNEED, offset, _round_up_to_pages(size))

    def read(self, offset: int, size: int) -> Any:
        """Return a copy of the shared bytes, whatever this process has written privately."""
        copied: Any = np.empty(size, np.uint8)
        done = 0
        while done < size:
            done += os.preadv(self._descriptor, [memoryview(copied)[done:]], offset + done)
        return copied

    def write(self, offset: int, source: Any, threads: int, *, is_fresh: bool) -> None:
        """Copy bytes to an offset.

        Args:
            threads: How many threads may copy large sources.
            is_fresh: Whether the target's pages have no memory yet.
        """
        target = np.frombuffer(self.map, np.uint8, source.nbytes, offset)
        is_fresh = is_fresh and source.nbytes >= _MIN_PWRITE_BYTES and self._descriptor >= 0

        def copy_mapped(part: slice) -> None:
            np.copyto(target[part], source[part])

        def copy_by_pwrite(part: slice) -> None:
            self._pwrite(offset + part.start, memoryview(source[part]))

        # pwrite allocates pages without a fault for each, but locks the file: one thread uses it
        # while the others write to the mapping
        first = copy_by_pwrite if is_fresh else copy_mapped
        if threads > 1 and source.nbytes >= _MIN_PARALLEL_BYTES:
            parts = [slice(at, at + _PIECE_BYTES) for at in range(0, source.nbytes, _PIECE_BYTES)]
            _copy_parallel(parts, first, *[copy_mapped] * (threads - 1))
        else:
            first(slice(0, source.nbytes))

    def _pwrite(self, offset: int, remaining: memoryview) -> None:
        while remaining:
            num_written = os.pwrite(self._descriptor, remaining, offset)
            remaining, offset = remaining[num_written:], offset + num_written

    def free_pages(self, offset: int, size: int) -> bool:
        """Return a range's pages to the system; return False if the system does not support it."""
        try:
            self.map.madvise(mmap.MADV_REMOVE, offset, size)
        except OSError:
            return False
        return True

    def __reduce__(self) -> tuple[Any, ...]:
        # valid only while a process is started: the descriptor is duplicated into the child
        return _open_in_child, (reduction.DupFd(self._descriptor), self.size)

    def fileno(self) -> int:
        """Return the descriptor, or -1 once it is closed."""
        return self._descriptor

    def close_descriptor(self) -> None:
        """Close the descriptor; afterwards the memory can be neither sent nor remapped."""
        descriptor, self._descriptor = self._descriptor, -1  # not closed twice if interrupted
        if descriptor >= 0:
            self._close(descriptor)

    __del__ = close_descriptor

    @property
    def address(self) -> int:
        """Address of the mapping in this process."""
        return address_of(np.frombuffer(self.map, np.uint8, 1))


@functools.cache
def _libc_mmap() -> Any:
    """Return mmap of the C library: Python's `mmap` cannot map at a given address."""
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


def _round_up_to_pages(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _copy_parallel(parts: Iterable[slice], *copies: Callable[[slice], None]) -> None:
    """Distribute parts among threads, one for each copy function; this thread runs the first."""
    remaining = iter(parts)
    lock = threading.Lock()

    def work(copy: Callable[[slice], None]) -> None:
        while True:
            with lock:
                part = next(remaining, None)
            if part is None:
                return
            copy(part)

    helpers = []
    for copy in copies[1:]:
        helper = threading.Thread(target=work, args=(copy,))
        try:
            helper.start()
        except RuntimeError:  # the system refused another thread: copy with those there are
            break
        helpers.append(helper)
    try:
        work(copies[0])
    finally:
        for helper in helpers:
            helper.join()


def _default_size_bytes() -> int:
    """Return the machine's memory in bytes, or at most 1/32 of a limit on address space."""
    size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return size if limit == resource.RLIM_INFINITY else min(size, max(1 << 26, limit // 32))


def _open_in_child(duplicate: Any, size: int) -> ArenaMemory:
    return ArenaMemory(duplicate.detach(), size)


class _Block:
    """State of a block in the writer's process."""

    __slots__ = ("generation", "is_fresh", "num_holders", "offset", "size")

    def __init__(self, offset: int, size: int) -> None:
        self.offset = offset
        self.size = size
        self.generation = 0
        self.num_holders = 0
        self.is_fresh = True
        """Whether its pages have no memory yet."""


class Writer:
    """The writing side of an arena: allocates blocks, and reuses those without a holder.

    Args:
        collect_released: Calls `release` with the tokens that readers have sent back; called when
            no free block fits.
        threads: How many threads may copy large buffers.
    """

    def __init__(
        self,
        memory: ArenaMemory,
        collect_released: Callable[[], None] | None = None,
        *,
        threads: int = 1,
    ) -> None:
        self._memory = memory
        self._threads = threads
        self._collect_released = collect_released
        self.base_address = memory.address
        self._next_offset = 0
        self._blocks: dict[int, _Block] = {}
        self._free: dict[int, list[_Block]] = {}
        self._trimmed: set[int] = set()
        self._free_bytes = 0
        self._ended_tokens: deque[tuple[int, int]] = deque()
        self._lock = threading.RLock()  # a user's collate_fn may use threads

    def lease(self, size: int) -> Lease:
        """Allocate a block to write to; `lend` sends its bytes without a copy."""
        with self._lock:
            block = self._allocate(size)
            block.is_fresh = False
            return self._lease_block(block, size)

    def lend(self, raw: memoryview, *, in_place: bool = True, is_lasting: bool = True) -> BlockRef:  # noqa: ARG002
        """Lend a reader a block with these bytes: the block they are in, or a copy of them.

        Args:
            in_place: Whether bytes at the begin of a block may be lent without a copy.
            is_lasting: Whether the buffer outlives its pickling; ignored here, used by pools.
        """
        source = np.frombuffer(raw, np.uint8)
        offset = address_of(source) - self.base_address
        with self._lock:
            block = self._blocks.get(offset) if in_place else None
            if block is None or block.num_holders == 0 or source.nbytes > block.size:
                block = self._allocate(source.nbytes)
                self._memory.write(block.offset, source, self._threads, is_fresh=block.is_fresh)
                block.is_fresh = False
            block.num_holders += 1
            return BlockRef(block.offset, source.nbytes, block.generation)

    def retain(self, refs: list[BlockRef]) -> bool:
        """Add a holder to each block; return False, and add none, if one of them was freed."""
        if not refs:
            return True
        with self._lock:
            blocks = [self._blocks.get(ref.offset) for ref in refs]
            for block, ref in zip(blocks, refs, strict=True):
                if block is None or block.generation != ref.generation or not block.num_holders:
                    return False
            for block in blocks:
                assert block is not None
                block.num_holders += 1
            return True

    def release(self, tokens: list[tuple[int, int]]) -> None:
        """Remove a holder from each block, and free those without one."""
        if tokens:
            with self._lock:
                self._release_tokens(tokens)

    def _release_tokens(self, tokens: list[tuple[int, int]]) -> None:
        """Remove a holder from each block; ignore tokens of an earlier generation."""
        for offset, generation in tokens:
            block = self._blocks.get(offset)
            if block is None or block.generation != generation or block.num_holders == 0:
                continue  # a late release: the block has been freed and reused since
            block.num_holders -= 1
            if block.num_holders == 0:
                block.generation += 1
                self._free.setdefault(block.size, []).append(block)
                self._free_bytes += block.size

    def _lease_block(self, block: _Block, size: int) -> Lease:
        """Add a holder to a block, and return its lease."""
        block.num_holders += 1
        return Lease.create(
            self._memory, BlockRef(block.offset, size, block.generation), size, self._ended_tokens
        )

    def _allocate(self, size: int) -> _Block:
        """Return a free block that fits, or a new one; raise ArenaFullError if there is neither."""
        if tokens := _drain(self._ended_tokens):
            self._release_tokens(tokens)
        wanted = _rounded_block_size(size)
        block = self._pop_free_block(wanted)
        if block is None and self._collect_released is not None and self._blocks:
            self._collect_released()
            block = self._pop_free_block(wanted)
        if block is not None:
            return block
        if self._next_offset + wanted > self._memory.size:
            raise ArenaFullError
        if self._free_bytes > max(MAX_FREE_BYTES, 2 * wanted):
            self._trim()
        block = _Block(self._next_offset, wanted)
        self._next_offset += wanted
        self._blocks[block.offset] = block
        return block

    def _pop_free_block(self, wanted: int) -> _Block | None:
        """Take a free block of the wanted size or up to a quarter larger; None if there is none."""
        for fitting in (wanted, *(s for s in sorted(self._free) if wanted < s <= wanted * 5 // 4)):
            if blocks := self._free.get(fitting):
                block = blocks.pop()
                if block.offset in self._trimmed:
                    self._trimmed.discard(block.offset)
                else:
                    self._free_bytes -= block.size
                return block
        return None

    def _trim(self) -> None:
        """Return the pages of free blocks to the system; the blocks stay reusable."""
        for blocks in self._free.values():
            for block in blocks:
                if block.offset not in self._trimmed:
                    if not self._memory.free_pages(block.offset, block.size):
                        return
                    self._trimmed.add(block.offset)
                    block.is_fresh = True
                    self._free_bytes -= block.size


def _rounded_block_size(size: int) -> int:
    """Round bytes up to a block size: eight sizes for each power of two, in whole pages."""
    step = max(PAGE_BYTES, 1 << max(0, (size - 1).bit_length() - 4))
    return -(-size // step) * step


class _ForkFence:
    """Leases that forked processes inherited: released once those processes have exited too."""

    def __init__(self, num_leased: int) -> None:
        self.ended_tokens: deque[tuple[int, int]] = deque()
        """Tokens of the leases that are over in this process."""
        self.num_leased = num_leased
        self.exit_checks: list[Callable[[], bool]] = []
        """Each returns whether the workers of one start have all exited."""

    def take_released(self) -> list[tuple[int, int]]:
        tokens = _drain(self.ended_tokens) if all(check() for check in self.exit_checks) else []
        self.num_leased -= len(tokens)
        return tokens


def _drain(ended_tokens: deque[tuple[int, int]]) -> list[tuple[int, int]]:
    return [ended_tokens.popleft() for _ in range(len(ended_tokens))]


_readers: weakref.WeakSet[Reader | PrivateReader] = weakref.WeakSet()


class Reader:
    """The reading side of an arena: leases blocks, and collects the tokens of released ones.

    Args:
        max_ratio: How many times the blocks of one `lease` call may be held at once before it
            returns copies.
    """

    def __init__(self, memory: ArenaMemory, *, max_ratio: float = 8) -> None:
        self._memory = memory
        self._max_ratio = max_ratio
        self._ended_tokens: deque[tuple[int, int]] = deque()
        self._num_leased = 0
        self._fences: list[_ForkFence] = []
        self._was_forked = False
        self._is_closed = False
        """Whether `close` was called; leases may outlive it."""
        self._live: Counter[tuple[int, int]] = Counter()
        """Number of leases by the block's token."""
        self._sizes: dict[int, int] = {}
        """Bytes of the latest lease by the block's offset."""
        self._tensor_tokens: set[tuple[int, int]] = set()
        """Tokens of leased blocks that tensors use."""
        self._private_sizes: dict[int, int] = {}
        """Bytes that a fork has made private, by the block's offset."""
        self._lock = threading.Lock()  # the loader's pin-memory thread may read batches as well
        _readers.add(self)

    def lease(self, refs: list[BlockRef]) -> list[Any]:
        """Lease blocks in place; return copies if too many are held, or a child may read them."""
        if not refs:
            return []
        limit = self._max_ratio * len(refs) + 16
        with self._lock:
            self._num_leased += len(refs)
            for ref in refs:
                self._live[ref.token] += 1
                self._sizes[ref.offset] = ref.size
                if ref.offset in self._private_sizes and self._live[ref.token] == 1:
                    self._memory.make_shared(ref.offset, self._private_sizes.pop(ref.offset))
            if self._num_leased - len(self._ended_tokens) > limit or self._was_forked:
                return [self._copy(ref) for ref in refs]
            return [self._lease(ref) for ref in refs]

    def take_released(self) -> list[tuple[int, int]]:
        """Take the tokens of leases that have ended, each once, for the writer to release."""
        if not self._ended_tokens and not self._fences:
            return []
        with self._lock:
            tokens = _drain(self._ended_tokens)
            for fence in self._fences:
                tokens += fence.take_released()
            self._fences = [fence for fence in self._fences if fence.num_leased]
            self._num_leased -= len(tokens)
            for token in tokens:
                self._live[token] -= 1
                if self._live[token] <= 0:
                    del self._live[token]
                    self._tensor_tokens.discard(token)
            return tokens

    def close(self) -> None:
        """Return all pages but those of leased blocks to the system; the writer has ended."""
        self.take_released()
        with self._lock:
            self._is_closed = True
            if self._was_forked or self._fences:
                self._fences = []
                return  # forked processes may be reading the other blocks
            live = {offset for offset, _ in self._live}
            for offset in self._private_sizes.keys() - live:  # only shared pages can be freed
                self._memory.make_shared(offset, self._private_sizes.pop(offset))
            begin = 0
            for offset in sorted(live):
                if offset > begin:
                    self._memory.free_pages(begin, offset - begin)
                begin = offset + _round_up_to_pages(self._sizes[offset])
            if self._memory.size - begin >= PAGE_BYTES:
                self._memory.free_pages(begin, self._memory.size - begin)

    def _lease(self, ref: BlockRef) -> Lease:
        lease = Lease.create(self._memory, ref, ref.size, self._ended_tokens)
        lease._reader = self
        return lease

    def mark_tensor(self, token: tuple[int, int]) -> None:
        """Note that a tensor uses this block."""
        self._tensor_tokens.add(token)

    def _copy(self, ref: BlockRef) -> Any:
        copied = np.frombuffer(self._memory.map, np.uint8, ref.size, ref.offset).copy()
        self._ended_tokens.append(ref.token)
        return copied

    def _fence_fork(self, have_exited: Callable[[], bool] | None = None) -> None:
        """Before a fork: hold back the releases of leases that the child inherits.

        Args:
            have_exited: Returns whether the forked workers have exited; None if the process is not
                one of this package's workers, so that its exit goes unnoticed.
        """
        if self._is_closed:
            self.take_released()
            self._make_leases_private()
            return
        self._make_leases_private()
        if have_exited is None:
            # the child may read the leased blocks for as long as it lives, which is unknown: none
            # of them is released, and later blocks are copied
            self._was_forked = True
            self._ended_tokens = deque(_drain(self._ended_tokens))
            self._fences = []
            self._num_leased = len(self._ended_tokens)
            return
        num_leased = (
            self._num_leased
            - len(self._ended_tokens)
            - sum(fence.num_leased for fence in self._fences)
        )
        if num_leased:
            fence = _ForkFence(num_leased)
            # leases that are over by now are not inherited
            fence.ended_tokens, self._ended_tokens = self._ended_tokens, fence.ended_tokens
            self._ended_tokens.extend(_drain(fence.ended_tokens))
            self._fences.append(fence)
        for fence in self._fences:
            # drop checks that are true already: they would be kept as long as the leases
            fence.exit_checks = [
                check for check in fence.exit_checks if check != have_exited and not check()
            ]
            fence.exit_checks.append(have_exited)

    def _make_leases_private(self) -> None:
        """Make leased arrays copy-on-write, in this process and in the child about to be forked.

        Tensors stay shared with the child, as those that torch sends between processes do.
        """
        for offset, generation in list(self._live):
            if (
                offset not in self._private_sizes
                and (offset, generation) not in self._tensor_tokens
            ):
                self._memory.make_private(offset, self._sizes[offset])
                self._private_sizes[offset] = self._sizes[offset]


class PrivateReader:
    """Reader with a copy-on-write mapping, for memory that several processes read.

    What this process writes to a lease stays in this process, and is gone when the block is leased
    again. If the system refuses the second mapping, every lease is a copy.
    """

    def __init__(self, memory: ArenaMemory) -> None:
        try:
            self._memory, self._must_copy = memory.map_private(), False
        except OSError:
            self._memory, self._must_copy = memory, True
        self._ended_tokens: deque[tuple[int, int]] = deque()
        self._live: Counter[tuple[int, int]] = Counter()
        self._leased: set[int] = set()
        """Offsets of blocks that this process may have written to."""
        _readers.add(self)

    def lease(self, refs: list[BlockRef]) -> list[Any]:
        """Lease blocks in place; return copies of blocks that are leased already."""
        if not refs:
            return []
        buffers: list[Any] = []
        for ref in refs:
            token = ref.token
            if self._must_copy or self._live[token]:
                buffers.append(self._memory.read(ref.offset, ref.size))
                continue
            if ref.offset in self._leased:
                self._memory.discard_private_writes(ref.offset, ref.size)
            self._live[token] += 1
            self._leased.add(ref.offset)
            buffers.append(Lease.create(self._memory, ref, ref.size, self._ended_tokens))
        return buffers

    def take_released(self) -> list[tuple[int, int]]:
        """Take the tokens of leases that have ended, each once, for the writer to release."""
        if not self._ended_tokens:
            return []
        tokens = _drain(self._ended_tokens)
        self._live.subtract(tokens)
        for token in tokens:
            if self._live[token] <= 0:
                del self._live[token]
        return tokens

    def read(self, ref: BlockRef) -> Any:
        """Return a copy of a block's bytes."""
        return self._memory.read(ref.offset, ref.size)

    def live_tokens(self) -> Counter[tuple[int, int]]:
        """Return the number of leases by token; up to date after `take_released`."""
        return self._live

    def _fence_fork(self, have_exited: Callable[[], bool] | None = None) -> None:  # noqa: ARG002
        # the child may read the leased blocks for as long as it lives: they are never released
        ended_tokens, self._ended_tokens = self._ended_tokens, deque()
        self._ended_tokens.extend(_drain(ended_tokens))


class _StartingWorkers(threading.local):
    have_exited: Callable[[], bool] | None = None
    """Check of the `starting_workers` block that this thread is in."""


_starting = _StartingWorkers()


class starting_workers:  # noqa: N801  (used as a statement)
    """Context manager in which this thread forks workers, which may read the leases they inherit.

    Args:
        have_exited: Returns whether these workers have exited; the leases are released after that.
    """

    def __init__(self, have_exited: Callable[[], bool]) -> None:
        self._have_exited = have_exited

    def __enter__(self) -> None:
        _starting.have_exited = self._have_exited

    def __exit__(self, *_: object) -> None:
        _starting.have_exited = None


def _before_fork() -> None:
    for reader in list(_readers):
        reader._fence_fork(_starting.have_exited)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork)
