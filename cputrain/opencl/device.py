"""OpenCL devices: command queue, limits, and a caching memory allocator."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from contextlib import suppress
from functools import cache
from sys import is_finalizing

import numpy as np

from cputrain.errors import CputrainError
from cputrain.machine.opencl import cl, found_devices, shares_memory
from cputrain.opencl.pocl import name_processor
from cputrain.opencl.trace import NOW, cannot_be_repeated
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.opencl.fallback_policy import Regime

    Block = tuple[int, Any, Any]
    """Size in bytes, OpenCL buffer, and the NumPy array that shares its memory (or None)."""

PAGE = 4096
"""Alignment in bytes of memory that host and device share."""

KEPT = 8
"""Divisor: on shared memory, cache at most 1/8 of it, as other processes need the host's memory."""

LEAST = 512
"""Size in bytes of the smallest block, and of the steps between block sizes."""

NAN = b"\xff" * 8
"""Byte pattern that is NaN in every floating-point dtype."""


class Memory:
    """A block of device memory, returned to the allocator when the last tensor in it dies."""

    __slots__ = ("__weakref__", "buffer", "copy", "device", "host", "passage", "size", "used")

    def __init__(self, device: Device, size: int, used: int, buffer: Any, host: Any) -> None:
        self.device = device
        self.size = size
        self.used = used
        """Bytes of the tensor storage; the rest of the block is padding."""
        self.buffer = buffer
        self.host = host
        """NumPy array of the same memory if the device shares host memory, else None."""
        self.copy: Any = None
        """Host copy that is newer than the buffer; set only while the class is `HostDirty`."""
        self.passage: Regime | None = None
        """Kernels that led from an upload to this memory, if few; see fallback_policy."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # (a compiler may create instances without __init__)
            self.device.give_back(self)


class HostDirty(Memory):
    """Memory whose newest bytes are on the host; reading `buffer` uploads them first."""

    __slots__ = ()

    @property
    def buffer(self) -> Any:
        """Upload the host copy, turn the object back into a `Memory`, and return its buffer."""
        self.device.bring(self)
        return buffer_of(self)

    def __del__(self) -> None:
        self.__class__ = Memory  # type: ignore[assignment]
        self.device.give_back(self)


_of_memory: Any = Memory.__dict__["buffer"]


def buffer_of(memory: Memory) -> Any:
    """Return the buffer without uploading a newer host copy."""
    return _of_memory.__get__(memory)


class Here(threading.local):
    """Index of the current device of this thread: the one that "ocl" without index means."""

    index = 0


HERE = Here()


class Operator(threading.local):
    """Context of the running operator, which defers the release of memory to its end.

    Kernel arguments are raw buffers, which hold no reference to their tensors. A tensor may die
    before the kernel that uses its buffer is enqueued; until then its memory must not be reused.
    """

    def __init__(self) -> None:
        self._blocks: list[list[tuple[Device, Block]]] = []

    def __enter__(self) -> None:
        self._blocks.append([])

    def __exit__(self, *_: object) -> None:
        blocks = self._blocks.pop()
        if self._blocks:  # nested: the outer operator may still use buffers freed here
            self._blocks[-1] += blocks
            return
        for device, block in blocks:
            device.release(block)

    def keeps(self, device: Device, block: Block) -> bool:
        """Hold a block until the outermost operator ends; return False outside of operators."""
        if not self._blocks:
            return False
        self._blocks[-1].append((device, block))
        return True


OPERATOR = Operator()


class UploadStats:
    """Statistics of uploads of host-dirty memory, over all devices."""

    any = False
    """Whether any memory has ever been host-dirty."""

    seconds = 0.0


class Stats(Record):
    """Memory statistics of a device, in bytes."""

    allocated: int
    """Bytes in live tensors."""

    reserved: int
    """Bytes in live tensors and in the cache."""

    peak: int
    """Maximum of `allocated` so far."""


class Device:
    """An OpenCL device with an in-order command queue and a caching allocator."""

    poisons = False
    """Whether to fill released memory with NaN, so that tests detect a use after free."""

    def __init__(self, index: int, found: Any) -> None:
        self.index = index
        self.name_in_torch = f"ocl:{index}"
        self.name = str(found.name).strip()
        self.context = cl().Context([found])
        self.queue = cl().CommandQueue(self.context)
        self.lock = threading.RLock()
        """Held from setting a kernel's arguments until it is enqueued."""
        self.depth = 0
        """Nesting depth of launches under the lock; >0 when a signal handler launches a kernel."""
        self._moves = threading.RLock()
        self.is_cpu = bool(found.type & cl().device_type.CPU)
        self.shares = shares_memory(found)
        """Whether the device shares the host's memory."""
        self.version = f"{found.platform.name} {found.driver_version}"
        self.memory = int(found.global_mem_size)
        self.largest_group = int(found.max_work_group_size)
        self.local = int(found.local_mem_size)
        self.units = int(found.max_compute_units)
        self.has_double = "cl_khr_fp64" in found.extensions.split()
        self._free: dict[int, list[tuple[Any, Any]]] = {}
        self._allocated = self._reserved = self._peak = 0
        self._is_ours = True
        os.register_at_fork(after_in_child=self._leave)

    def allocate(self, size: int, used: int) -> Memory:
        """Return a block of `size` bytes, of which the first `used` are tensor storage."""
        kept = self._free.get(size)
        buffer, host = kept.pop() if kept else self._new(size)
        if NOW.recorder is not None:
            NOW.recorder.allocated(self, size, used, buffer)
        self._allocated += size
        if self._allocated > self._peak:
            self._peak = self._allocated
        return Memory(self, size, used, buffer, host)

    def ask(self, kernel: Any, items: Any, group: Any, *arguments: Any) -> None:
        """Enqueue a kernel with global size `items` and work-group size `group`; record the launch."""
        if NOW.recorder is not None:
            NOW.recorder.launched(self, kernel, items, group, arguments)
        self.run(kernel, items, group, arguments)

    def run(self, kernel: Any, items: Any, group: Any, arguments: Sequence[Any]) -> None:
        """Enqueue a kernel without recording the launch."""
        with self.lock:  # a kernel object holds its arguments until it is enqueued
            chosen = twin_of_kernel(kernel) if self.depth else kernel
            self.depth += 1
            try:
                chosen.set_args(*arguments)
                _enqueue(self.queue, chosen, items, group, None, None, False, False)
            finally:
                self.depth -= 1

    def constant(self, host: Any) -> Any:
        """Return a read-only buffer with a copy of a host array."""
        flags = cl().mem_flags
        return _constant()(self.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=host)

    def keep_on_host(self, memory: Memory, copy: Any) -> None:
        """Make a host array the memory's content, to be uploaded when a kernel needs the buffer."""
        with self._moves:
            memory.copy, memory.passage = copy, None
            memory.__class__ = HostDirty
            UploadStats.any = True

    def bring(self, memory: Memory) -> None:
        """Upload the newer host copy of host-dirty memory."""
        with self._moves:
            if type(memory) is not HostDirty:
                return  # another thread has uploaded it
            self.queue.finish()  # do not count the wait for earlier kernels as upload time
            begin = time.perf_counter()
            cl().enqueue_copy(self.queue, buffer_of(memory), memory.copy)
            UploadStats.seconds += time.perf_counter() - begin
            memory.copy = None
            memory.__class__ = Memory  # type: ignore[assignment]

    def may_change(self, one: Any) -> bool:
        """Return whether a kernel argument is a writable buffer, not a scalar or a constant."""
        return type(one) is cl().Buffer

    def _new(self, size: int) -> tuple[Any, Any]:
        kept = self._reserved - self._allocated
        if self._reserved + size > self.memory or (self.shares and kept > self.memory // KEPT):
            self.empty_cache()
        try:
            if self._reserved + size > self.memory:
                raise MemoryError
            found = self._shared(size) if self.shares else (self._own(size), None)
        except (cl().Error, MemoryError) as error:  # (or the driver limits the size of a buffer)
            if self._free:
                self.empty_cache()
                return self._new(size)
            raise no_memory(self, size) from error
        self._reserved += size
        return found

    def _shared(self, size: int) -> tuple[Any, Any]:
        whole = np.empty(size + PAGE, np.uint8)
        start = -whole.ctypes.data % PAGE
        host = whole[start : start + size]
        flags = cl().mem_flags
        return cl().Buffer(self.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=host), host

    def _own(self, size: int) -> Any:
        found = cl().Buffer(self.context, cl().mem_flags.READ_WRITE, size)
        # some drivers allocate on first use: make an out-of-memory error occur here
        cl().enqueue_fill_buffer(self.queue, found, b"\0", 0, 1)
        return found

    def give_back(self, memory: Memory) -> None:
        """Release dead memory now, or at the end of the running operator."""
        if not self._is_ours:
            return
        block = (memory.size, memory.buffer, memory.host)
        if not OPERATOR.keeps(self, block):
            self.release(block)

    def release(self, block: Block) -> None:
        """Put a block into the cache: commands enqueued from now on may reuse it."""
        size, buffer, host = block
        self._allocated -= size
        if self.poisons and not is_finalizing():
            _fill(self.queue, buffer, NAN, 0, size)
        kept = self._free.get(size)
        if kept is None:
            kept = self._free[size] = []
        kept.append((buffer, host))

    def _leave(self) -> None:
        self._is_ours = False
        self.__class__ = Forked
        _end_without_drivers()

    def empty_cache(self) -> None:
        """Free all cached blocks."""
        kept, self._free = self._free, {}
        self.finish()  # kernels may still use released blocks
        self._reserved -= sum(size * len(blocks) for size, blocks in kept.items())

    def finish(self) -> None:
        """Wait until all enqueued commands have finished."""
        cannot_be_repeated()
        try:
            self.queue.finish()
        except cl().Error as error:
            raise in_clear(error) from error

    def stats(self) -> Stats:
        """Return the memory statistics."""
        return Stats(allocated=self._allocated, reserved=self._reserved, peak=self._peak)


class Forked(Device):
    """A device in a forked child, where it is unusable: drivers have threads, which fork drops."""

    def allocate(self, size: int, used: int) -> Memory:  # noqa: ARG002
        raise self._error(f"allocate {size} bytes")

    def run(self, kernel: Any, items: Any, group: Any, arguments: Sequence[Any]) -> None:  # noqa: ARG002
        raise self._error(f"run {kernel.function_name}")

    def constant(self, host: Any) -> Any:
        raise self._error(f"allocate {len(host)} bytes")

    def bring(self, memory: Memory) -> None:
        raise self._error(f"write {memory.size} bytes")

    def finish(self) -> None:
        raise self._error("finish")

    def _error(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"ocl:{self.index} cannot {what} in a forked subprocess: {self.name} is in use by the "
            "process that was forked. To use it with multiprocessing, you must use the 'spawn' "
            "start method"
        )


@cache
def _end_without_drivers() -> None:
    """Make this forked process skip the exit handlers of drivers when it ends.

    Those would wait forever for threads that fork dropped. Exit handlers run last-in, first-out,
    so this one, registered last, ends the process before theirs.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # not every C library has it
        libc.on_exit(libc._exit, None)


_enqueue: Any = cl().enqueue_nd_range_kernel
_fill: Any = cl().enqueue_fill_buffer

_types: dict[Any, list[Any]] = {}


def typed(kernel: Any, types: Sequence[Any]) -> Any:
    """Set the dtypes of a kernel's scalar arguments (None for buffers) and return the kernel."""
    kernel.set_scalar_arg_dtypes(list(types))
    _types[kernel] = list(types)
    return kernel


def twin_of_kernel(kernel: Any) -> Any:
    """Return a second kernel object, for when the first one's arguments are partly set."""
    twin = cl().Kernel(kernel.program, kernel.function_name)
    twin.set_scalar_arg_dtypes(_types[kernel])
    return twin


@cache
def _constant() -> Any:
    return type("Constant", (cl().Buffer,), {})


def in_clear(error: BaseException) -> BaseException:
    """Translate a PyOpenCL error into the error that torch would raise; return others as is."""
    if not isinstance(error, cl().Error):
        return error
    import torch

    if isinstance(error, cl().MemoryError):
        return torch.OutOfMemoryError(
            f"an OpenCL device has no memory left ({error}). Use a smaller batch."
        )
    return RuntimeError(
        f"an OpenCL device failed ({error}). If it was reset, or is gone, the process must be "
        "started anew; else report it with the driver's version: cputrain info tells that."
    )


def no_memory(device: Device, size: int) -> Exception:
    """Return the `torch.OutOfMemoryError` for a failed allocation of `size` bytes."""
    import torch

    return torch.OutOfMemoryError(
        f"ocl:{device.index} ({device.name}) has no memory for {size / 2**20:.1f} MiB: "
        f"{device.stats().allocated / 2**20:.1f} MiB are in tensors. Use a smaller batch."
    )


def rounded(size: int) -> int:
    """Return the block size for `size` bytes: at most an eighth larger, at least the minimum."""
    if size <= LEAST:
        return LEAST
    step = max(LEAST, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


@cache
def devices() -> tuple[Device, ...]:
    """Return all OpenCL devices, GPUs first."""
    found = found_devices()
    if not found:
        raise CputrainError(
            "cputrain.opencl", "needs an OpenCL device", found="none",
            do='pip install "cputrain[opencl]" brings one that is the CPU (pocl). For a GPU, '
            "install what its driver has for OpenCL.",
        )  # fmt: skip
    for one in found:
        name_processor(one)
    return tuple(Device(number, one) for number, one in enumerate(found))
