"""The devices: their queues, their limits, and the memory that is kept for the next tensor."""

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
    """Its size, its buffer, and the same bytes on the host."""

PAGE = 4096
"""What memory that host and device share is aligned to."""

KEPT = 8
"""The part of the memory of the host, at the most, that is kept for tensors to come: others on the
machine want it, too."""

LEAST = 512
"""Bytes of the smallest block."""

NAN = b"\xff" * 8
"""In every type of floating-point numbers."""


class Memory:
    """A block on a device; it goes back to those that are free with the last tensor in it."""

    __slots__ = ("__weakref__", "buffer", "copy", "device", "host", "passage", "size", "used")

    def __init__(self, device: Device, size: int, used: int, buffer: Any, host: Any) -> None:
        self.device = device
        self.size = size
        self.used = used
        """Bytes that tensors may be in: the rest of the block is beyond torch's storage."""
        self.buffer = buffer
        self.host = host
        """The same bytes, where the host may use them; None where it cannot."""
        self.copy: Any = None
        """Newer bytes on the host: see Waiting."""
        self.passage: Regime | None = None
        """What was done since they were on the host, if that is not long ago."""

    def __del__(self) -> None:
        with suppress(AttributeError):  # (a compiler makes some that are none)
            self.device.give_back(self)


class HostDirty(Memory):
    """One whose newer bytes are on the host. Whoever wants its buffer has them brought there."""

    __slots__ = ()

    @property
    def buffer(self) -> Any:
        """With the newer bytes; from then on it is any other's."""
        self.device.bring(self)
        return buffer_of(self)

    def __del__(self) -> None:
        self.__class__ = Memory  # type: ignore[assignment]
        self.device.give_back(self)


_of_memory: Any = Memory.__dict__["buffer"]


def buffer_of(memory: Memory) -> Any:
    """Its buffer, whatever is in it."""
    return _of_memory.__get__(memory)


class Here(threading.local):
    """What "ocl" means in this thread."""

    index = 0


HERE = Here()


class Operator(threading.local):
    """The operator that this thread is at: memory that is let go of meanwhile is free at its end.

    A kernel is asked for with buffers, which say nothing of the tensors that they were taken from.
    Such a tensor may be gone before the kernel is asked for, and its memory must not be given to
    another one until then.
    """

    def __init__(self) -> None:
        self._blocks: list[list[tuple[Device, Block]]] = []

    def __enter__(self) -> None:
        self._blocks.append([])

    def __exit__(self, *_: object) -> None:
        blocks = self._blocks.pop()
        if self._blocks:  # an operator within another one, which may hold what this one let go of
            self._blocks[-1] += blocks
            return
        for device, block in blocks:
            device.release(block)

    def keeps(self, device: Device, block: Block) -> bool:
        """Keep a block until the operator's end; return False if there is none."""
        if not self._blocks:
            return False
        self._blocks[-1].append((device, block))
        return True


OPERATOR = Operator()


class UploadStats:
    """What was brought from the host, by all devices."""

    any = False
    """Whether bytes ever waited."""

    seconds = 0.0


class Stats(Record):
    """Bytes of a device."""

    allocated: int
    """In tensors."""

    reserved: int
    """In tensors, and kept for the next."""

    peak: int
    """The most that was in tensors."""


class Device:
    """One, with a queue in which everything is done in its order."""

    poisons = False
    """Whether memory that is let go of is filled with NaN: a test sees who reads it still."""

    def __init__(self, index: int, found: Any) -> None:
        self.index = index
        self.name_in_torch = f"ocl:{index}"
        self.name = str(found.name).strip()
        self.context = cl().Context([found])
        self.queue = cl().CommandQueue(self.context)
        self.lock = threading.RLock()
        """Held while something is asked of the queue by several calls."""
        self.depth = 0
        """How often this was begun by who holds it: a handler of a signal may come between."""
        self._moves = threading.RLock()
        self.is_cpu = bool(found.type & cl().device_type.CPU)
        self.shares = shares_memory(found)
        """Whether its memory is the host's."""
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
        """A block of so many bytes: those that are used, `rounded`."""
        kept = self._free.get(size)
        buffer, host = kept.pop() if kept else self._new(size)
        if NOW.recorder is not None:
            NOW.recorder.allocated(self, size, used, buffer)
        self._allocated += size
        if self._allocated > self._peak:
            self._peak = self._allocated
        return Memory(self, size, used, buffer, host)

    def ask(self, kernel: Any, items: Any, group: Any, *arguments: Any) -> None:
        """Have a kernel run by so many items, of which so many are a group."""
        if NOW.recorder is not None:
            NOW.recorder.launched(self, kernel, items, group, arguments)
        self.run(kernel, items, group, arguments)

    def run(self, kernel: Any, items: Any, group: Any, arguments: Sequence[Any]) -> None:
        """The same, without it being written down."""
        with self.lock:  # arguments stay with the kernel until it is asked for
            chosen = twin_of_kernel(kernel) if self.depth else kernel
            self.depth += 1
            try:
                chosen.set_args(*arguments)
                _enqueue(self.queue, chosen, items, group, None, None, False, False)
            finally:
                self.depth -= 1

    def constant(self, host: Any) -> Any:
        """Memory that has these values, and no others ever."""
        flags = cl().mem_flags
        return _constant()(self.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=host)

    def keep_on_host(self, memory: Memory, copy: Any) -> None:
        """These are its bytes from now on: brought here when a kernel needs them."""
        with self._moves:
            memory.copy, memory.passage = copy, None
            memory.__class__ = HostDirty
            UploadStats.any = True

    def bring(self, memory: Memory) -> None:
        """Bring bytes from the host that wait there."""
        with self._moves:
            if type(memory) is not HostDirty:
                return  # another thread has
            self.queue.finish()  # to wait for others is no cost of its own
            begin = time.perf_counter()
            cl().enqueue_copy(self.queue, buffer_of(memory), memory.copy)
            UploadStats.seconds += time.perf_counter() - begin
            memory.copy = None
            memory.__class__ = Memory  # type: ignore[assignment]

    def may_change(self, one: Any) -> bool:
        """Whether it is memory, and not a constant."""
        return type(one) is cl().Buffer

    def _new(self, size: int) -> tuple[Any, Any]:
        kept = self._reserved - self._allocated
        if self._reserved + size > self.memory or (self.shares and kept > self.memory // KEPT):
            self.empty_cache()
        try:
            if self._reserved + size > self.memory:
                raise MemoryError
            found = self._shared(size) if self.shares else (self._own(size), None)
        except (cl().Error, MemoryError) as error:  # (a block may be larger than a driver has)
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
        # some drivers look for the memory only when it is used: that is to fail here
        cl().enqueue_fill_buffer(self.queue, found, b"\0", 0, 1)
        return found

    def give_back(self, memory: Memory) -> None:
        """It is free: for what is asked of the queue from now on."""
        if not self._is_ours:
            return
        block = (memory.size, memory.buffer, memory.host)
        if not OPERATOR.keeps(self, block):
            self.release(block)

    def release(self, block: Block) -> None:
        """Have a block used again, by what is asked of the queue from now on."""
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
        """Nothing is kept for the next tensor."""
        kept, self._free = self._free, {}
        self.finish()  # what was given back may be at work still
        self._reserved -= sum(size * len(blocks) for size, blocks in kept.items())

    def finish(self) -> None:
        """Wait for all that was asked of it."""
        cannot_be_repeated()
        try:
            self.queue.finish()
        except cl().Error as error:
            raise in_clear(error) from error

    def stats(self) -> Stats:
        """What is in use."""
        return Stats(allocated=self._allocated, reserved=self._reserved, peak=self._peak)


class Forked(Device):
    """One in a process that was forked: drivers have threads, which are not forked along."""

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
    """Have this process, which was forked, end without what drivers do at its end.

    They wait for their threads, for ever. What is registered last is called first.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # not every C library has it
        libc.on_exit(libc._exit, None)


_enqueue: Any = cl().enqueue_nd_range_kernel
_fill: Any = cl().enqueue_fill_buffer

_types: dict[Any, list[Any]] = {}


def typed(kernel: Any, types: Sequence[Any]) -> Any:
    """The kernel, with the types of its scalar arguments."""
    kernel.set_scalar_arg_dtypes(list(types))
    _types[kernel] = list(types)
    return kernel


def twin_of_kernel(kernel: Any) -> Any:
    """Another with arguments of its own: those of the first may be half set."""
    twin = cl().Kernel(kernel.program, kernel.function_name)
    twin.set_scalar_arg_dtypes(_types[kernel])
    return twin


@cache
def _constant() -> Any:
    return type("Constant", (cl().Buffer,), {})


def in_clear(error: BaseException) -> BaseException:
    """The same, as torch's callers know it, if a driver raised it."""
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
    """What torch's callers look for."""
    import torch

    return torch.OutOfMemoryError(
        f"ocl:{device.index} ({device.name}) has no memory for {size / 2**20:.1f} MiB: "
        f"{device.stats().allocated / 2**20:.1f} MiB are in tensors. Use a smaller batch."
    )


def rounded(size: int) -> int:
    """The block for so many bytes: an eighth more than needed, at most."""
    if size <= LEAST:
        return LEAST
    step = max(LEAST, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


@cache
def devices() -> tuple[Device, ...]:
    """All there are, those of GPUs first."""
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
