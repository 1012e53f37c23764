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
from cputrain.machine.opencl import cl, list_devices, shares_memory
from cputrain.opencl.pocl import name_processor
from cputrain.opencl.trace import TRACING, break_trace
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cputrain.opencl.fallback_policy import CallsSinceUpload

    Block = tuple[int, Any, Any]
    """Size in bytes, OpenCL buffer, and the NumPy array that shares its memory (or None)."""

PAGE_BYTES = 4096
"""Alignment in bytes of memory that host and device share."""

CACHE_DIVISOR = 8
"""Divisor: on shared memory, cache at most 1/8 of it, as other processes need the host's memory."""

MIN_BLOCK_BYTES = 512
"""Size in bytes of the smallest block, and smallest step between block sizes."""

TENSOR_CORES_CAPABILITY = 8
"""Compute capability (major) from which NVIDIA's GPUs have the instructions of tensor_cores.cl."""

NAN_BYTES = b"\xff" * 8
"""Byte pattern that is NaN in every floating-point dtype."""


SHORTAGE_HOOKS: list[Callable[[Device], bool]] = []
"""Called when a device has no memory left; they return whether they have given some back."""


class DeviceMemory:
    """A block of device memory, returned to the allocator when the last tensor in it dies."""

    __slots__ = (
        "__weakref__", "buffer", "calls_since_upload", "copy", "device", "host", "size", "used"
    )  # fmt: skip

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
        self.calls_since_upload: CallsSinceUpload | None = None
        """Kernel calls from the last upload to this memory, if few; see fallback_policy."""

    def __del__(self) -> None:
        try:  # (no name of this module but within `free`: at exit they may be gone)
            self.device.free(self)
        except AttributeError:  # (a compiler may create instances without __init__)
            return


class HostDirty(DeviceMemory):
    """Memory whose newest bytes are on the host; reading `buffer` uploads them first."""

    __slots__ = ()

    @property
    def buffer(self) -> Any:
        """Upload the host copy, turn the object into a `DeviceMemory`, and return its buffer."""
        self.device.upload(self)
        return raw_buffer(self)

    def __del__(self) -> None:
        self.__class__ = DeviceMemory  # type: ignore[assignment]
        self.device.free(self)


_buffer_descriptor: Any = DeviceMemory.__dict__["buffer"]


def raw_buffer(memory: DeviceMemory) -> Any:
    """Return the buffer without uploading a newer host copy."""
    return _buffer_descriptor.__get__(memory)


class CurrentDevice(threading.local):
    """Index of this thread's current device, which "ocl" without an index means."""

    index = 0


CURRENT_DEVICE = CurrentDevice()
"""Current device of the calling thread."""


class OperatorScope(threading.local):
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

    def defer(self, device: Device, block: Block) -> bool:
        """Hold a block until the outermost operator ends; return False outside of operators."""
        if not self._blocks:
            return False
        self._blocks[-1].append((device, block))
        return True


OPERATOR_SCOPE = OperatorScope()
"""Context manager around each operator."""


class UploadStats:
    """Statistics of uploads of host-dirty memory, over all devices."""

    has_host_dirty = False
    """Whether any memory has ever been host-dirty."""

    upload_s = 0.0


class Stats(Record):
    """Memory statistics of a device, in bytes."""

    allocated: int
    """Bytes in live tensors."""

    reserved: int
    """Bytes in live tensors and in the cache."""

    peak: int
    """Maximum of `allocated` so far."""


class Pin:
    """Memory that graphs use.

    Args:
        buffer: Its buffer.
    """

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.count = 0
        """Number of graphs."""
        self.released: Block | None = None
        """The block, once no tensor is in it."""


class Device:
    """An OpenCL device with an in-order command queue and a caching allocator."""

    should_poison = False
    """Whether to fill released memory with NaN, so that tests detect a use after free."""

    def __init__(self, index: int, cl_device: Any) -> None:
        self.index = index
        self.name_in_torch = f"ocl:{index}"
        self.name = str(cl_device.name).strip()
        self.context = cl().Context([cl_device])
        self.queue = cl().CommandQueue(self.context)
        self.lock = threading.RLock()
        """Held from setting a kernel's arguments until it is enqueued."""
        self.launch_depth = 0
        """Nesting depth of launches under the lock; >0 when a signal handler launches a kernel."""
        self._transfer_lock = threading.RLock()
        self.is_cpu = bool(cl_device.type & cl().device_type.CPU)
        self.shares_memory = shares_memory(cl_device)
        """Whether the device shares the host's memory."""
        self.version = f"{cl_device.platform.name} {cl_device.driver_version}"
        self.memory_bytes = int(cl_device.global_mem_size)
        self.max_group_items = int(cl_device.max_work_group_size)
        self.local_bytes = int(cl_device.local_mem_size)
        self.argument_bytes = int(cl_device.max_parameter_size)
        """Largest number of bytes of a kernel's arguments."""
        self.num_units = int(cl_device.max_compute_units)
        self.has_double = "cl_khr_fp64" in cl_device.extensions.split()
        self.has_tensor_cores = _has_tensor_cores(cl_device)
        self.pinned: dict[int, Pin] = {}
        """By the id of a buffer: what graphs use, and the allocator gives to no other tensor."""
        self._free: dict[int, list[tuple[Any, Any]]] = {}
        self._allocated = self._reserved = self._peak = 0
        self._is_owner = True
        os.register_at_fork(after_in_child=self._disable_after_fork)

    def allocate(self, size: int, used: int) -> DeviceMemory:
        """Return a block of `size` bytes, of which the first `used` are tensor storage.

        pyopencl's MemoryPool cannot hold blocks of host memory, which `shares_memory` needs.
        """
        cached = self._free.get(size)
        buffer, host = cached.pop() if cached else self._create_block(size)
        if TRACING.recorder is not None:
            TRACING.recorder.record_allocation(self, size, used, buffer)
        self._allocated += size
        if self._allocated > self._peak:
            self._peak = self._allocated
        return DeviceMemory(self, size, used, buffer, host)

    def launch(self, kernel: Any, global_size: Any, local_size: Any, *arguments: Any) -> None:
        """Enqueue a kernel with a global size and a work-group size, and record it."""
        if TRACING.recorder is not None:
            TRACING.recorder.record_launch(self, kernel, global_size, local_size, arguments)
        self.run(kernel, global_size, local_size, arguments)

    def run(self, kernel: Any, global_size: Any, local_size: Any, arguments: Sequence[Any]) -> None:
        """Enqueue a kernel without recording the launch."""
        with self.lock:  # a kernel object holds its arguments until it is enqueued
            kernel_object = clone_kernel(kernel) if self.launch_depth else kernel
            self.launch_depth += 1
            try:
                kernel_object.set_args(*arguments)
                _enqueue(
                    self.queue, kernel_object, global_size, local_size, None, None, False, False
                )
            finally:
                self.launch_depth -= 1

    def constant(self, host: Any) -> Any:
        """Return a read-only buffer with a copy of a host array."""
        flags = cl().mem_flags
        return _constant_class()(self.context, flags.READ_ONLY | flags.COPY_HOST_PTR, hostbuf=host)

    def mark_host_dirty(self, memory: DeviceMemory, host_copy: Any) -> None:
        """Make a host array the memory's content, to be uploaded when a kernel needs the buffer."""
        with self._transfer_lock:
            memory.copy, memory.calls_since_upload = host_copy, None
            memory.__class__ = HostDirty
            UploadStats.has_host_dirty = True
        if id(raw_buffer(memory)) in self.pinned:  # a graph reads it without asking
            self.upload(memory)

    def upload(self, memory: DeviceMemory) -> None:
        """Upload the newer host copy of host-dirty memory."""
        with self._transfer_lock:
            if type(memory) is not HostDirty:
                return  # another thread has uploaded it
            self.queue.finish()  # do not count the wait for earlier kernels as upload time
            begin = time.perf_counter()
            cl().enqueue_copy(self.queue, raw_buffer(memory), memory.copy)
            UploadStats.upload_s += time.perf_counter() - begin
            memory.copy = None
            memory.__class__ = DeviceMemory  # type: ignore[assignment]

    def is_writable_buffer(self, argument: Any) -> bool:
        """Return whether a kernel argument is a writable buffer, not a scalar or a constant."""
        return type(argument) is cl().Buffer

    def _create_block(self, size: int) -> tuple[Any, Any]:
        cached_bytes = self._reserved - self._allocated
        if self._reserved + size > self.memory_bytes or (
            self.shares_memory and cached_bytes > self.memory_bytes // CACHE_DIVISOR
        ):
            self.empty_cache()
        try:
            if self._reserved + size > self.memory_bytes:
                raise MemoryError
            block = (
                self._create_shared_buffer(size)
                if self.shares_memory
                else (self._create_buffer(size), None)
            )
        except (cl().Error, MemoryError) as error:  # (or the driver limits the size of a buffer)
            has_more = [hook(self) for hook in SHORTAGE_HOOKS]
            if any(self._free.values()) or any(has_more):
                self.empty_cache()
                return self._create_block(size)
            raise out_of_memory_error(self, size) from error
        self._reserved += size
        return block

    def _create_shared_buffer(self, size: int) -> tuple[Any, Any]:
        storage = np.empty(size + PAGE_BYTES, np.uint8)
        start = -storage.ctypes.data % PAGE_BYTES
        host = storage[start : start + size]
        flags = cl().mem_flags
        return cl().Buffer(self.context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=host), host

    def _create_buffer(self, size: int) -> Any:
        buffer = cl().Buffer(self.context, cl().mem_flags.READ_WRITE, size)
        # some drivers allocate on first use: make an out-of-memory error occur here
        cl().enqueue_fill_buffer(self.queue, buffer, b"\0", 0, 1)
        return buffer

    def free(self, memory: DeviceMemory) -> None:
        """Release dead memory now, or at the end of the running operator."""
        if not self._is_owner:
            return
        block = (memory.size, memory.buffer, memory.host)
        if not OPERATOR_SCOPE.defer(self, block):
            self.release(block)

    def release(self, block: Block) -> None:
        """Put a block into the cache: commands enqueued from now on may reuse it."""
        size, buffer, host = block
        if self.pinned and id(buffer) in self.pinned:
            self.pinned[id(buffer)].released = block
            return
        self._allocated -= size
        if self.should_poison and not is_finalizing():
            _fill(self.queue, buffer, NAN_BYTES, 0, size)
        cached = self._free.get(size)
        if cached is None:
            cached = self._free[size] = []
        cached.append((buffer, host))

    def check_process(self) -> None:
        """Raise an error in a forked process, which cannot use the device."""

    def pin(self, buffers: Sequence[Any]) -> None:
        """Keep the memory of buffers from other tensors until `unpin`, even without a tensor."""
        for buffer in buffers:
            self.pinned.setdefault(id(buffer), Pin(buffer)).count += 1

    def unpin(self, buffers: Sequence[Any]) -> None:
        """Undo one `pin` of each of these buffers."""
        for buffer in buffers:
            pin = self.pinned[id(buffer)]
            pin.count -= 1
            if not pin.count:
                del self.pinned[id(buffer)]
                if pin.released is not None:
                    self.release(pin.released)

    def _disable_after_fork(self) -> None:
        self._is_owner = False
        self.__class__ = ForkedDevice
        _skip_driver_exit_handlers()

    def empty_cache(self) -> None:
        """Free all cached blocks."""
        removed, num_bytes = [], 0
        for size, cached in list(self._free.items()):
            for _ in range(len(cached)):
                try:
                    removed.append(cached.pop())
                except IndexError:  # another thread allocates
                    break
                num_bytes += size
        self.wait()  # kernels may still use released blocks
        self._reserved -= num_bytes

    def finish(self, memory: DeviceMemory | None = None) -> None:  # noqa: ARG002
        """Wait until all enqueued commands have finished.

        Args:
            memory: What is to be read, if nothing else is.
        """
        self.wait()

    def wait(self) -> None:
        """Wait until all enqueued commands have finished, also while a graph is captured."""
        break_trace()
        try:
            self.queue.finish()
        except cl().Error as error:
            raise to_torch_error(error) from error

    def stats(self) -> Stats:
        """Return the memory statistics."""
        return Stats(allocated=self._allocated, reserved=self._reserved, peak=self._peak)


class ForkedDevice(Device):
    """A device in a forked child, where it is unusable: drivers have threads, which fork drops."""

    def allocate(self, size: int, used: int) -> DeviceMemory:  # noqa: ARG002
        raise self._error(f"allocate {size} bytes")

    def run(self, kernel: Any, global_size: Any, local_size: Any, arguments: Sequence[Any]) -> None:  # noqa: ARG002
        raise self._error(f"run {kernel.function_name}")

    def check_process(self) -> None:
        raise self._error("replay a graph")

    def constant(self, host: Any) -> Any:
        raise self._error(f"allocate {len(host)} bytes")

    def upload(self, memory: DeviceMemory) -> None:
        raise self._error(f"write {memory.size} bytes")

    def wait(self) -> None:
        raise self._error("finish")

    def _error(self, task: str) -> RuntimeError:
        return RuntimeError(
            f"ocl:{self.index} cannot {task} in a forked subprocess: {self.name} is in use by the "
            "process that was forked. To use it with multiprocessing, you must use the 'spawn' "
            "start method"
        )


@cache
def _skip_driver_exit_handlers() -> None:
    """Make this forked process skip the exit handlers of drivers when it ends.

    The drivers' handlers would wait forever for threads that do not exist after a fork. Exit
    handlers run last-in, first-out, so this handler, registered last, ends the process first.
    """
    libc = ctypes.CDLL(None)
    with suppress(AttributeError):  # not every C library has it
        libc.on_exit(libc._exit, None)


_enqueue: Any = cl().enqueue_nd_range_kernel
_fill: Any = cl().enqueue_fill_buffer

_types: dict[Any, list[Any]] = {}
"""Dtypes of scalar arguments by kernel object, for `clone_kernel`."""


_written: dict[Any, Sequence[bool]] = {}
"""By kernel object: which arguments it may write to."""


def set_argument_types(kernel: Any, types: Sequence[Any], written: Sequence[bool]) -> Any:
    """Describe a kernel's arguments and return the kernel.

    Args:
        kernel: The kernel object.
        types: Dtypes of scalar arguments; None for buffers.
        written: Which arguments it may write to.
    """
    kernel.set_scalar_arg_dtypes(list(types))
    _types[kernel] = list(types)
    _written[kernel] = written
    return kernel


def written_by(kernel: Any) -> Sequence[bool]:
    """Return which arguments a kernel may write to."""
    return _written[kernel]


def clone_kernel(kernel: Any) -> Any:
    """Return a second kernel object, for use while the arguments of the first are partly set."""
    clone = cl().Kernel(kernel.program, kernel.function_name)
    clone.set_scalar_arg_dtypes(_types[kernel])
    return clone


@cache
def _constant_class() -> Any:
    return type("Constant", (cl().Buffer,), {})


def to_torch_error(error: BaseException) -> BaseException:
    """Translate a PyOpenCL error into the error that torch would raise; return others as is."""
    if not isinstance(error, cl().Error):
        return error
    return _torch_error(str(error), is_out_of_memory=isinstance(error, cl().MemoryError))


OUT_OF_MEMORY = (-4, -5, -6)
"""Status codes: allocation failure, out of resources, out of host memory."""


def error_of_status(status: int) -> BaseException:
    """Return the error that torch would raise for the status code of a call into the driver."""
    name = cl().status_code.to_string(status)
    return _torch_error(name, is_out_of_memory=status in OUT_OF_MEMORY)


def _torch_error(text: str, *, is_out_of_memory: bool) -> BaseException:
    import torch

    if is_out_of_memory:
        return torch.OutOfMemoryError(
            f"an OpenCL device has no memory left ({text}). Use a smaller batch."
        )
    return RuntimeError(
        f"an OpenCL device failed ({text}). If it was reset or removed, restart the process; else "
        "report this error with the driver's version, which cputrain info prints."
    )


def out_of_memory_error(device: Device, size: int) -> Exception:
    """Return the `torch.OutOfMemoryError` for a failed allocation of `size` bytes."""
    import torch

    return torch.OutOfMemoryError(
        f"ocl:{device.index} ({device.name}) has no memory for {size / 2**20:.1f} MiB: "
        f"{device.stats().allocated / 2**20:.1f} MiB are in tensors. Use a smaller batch."
    )


def rounded_block_size(size: int) -> int:
    """Return the block size for `size` bytes: at most an eighth larger, at least the minimum."""
    if size <= MIN_BLOCK_BYTES:
        return MIN_BLOCK_BYTES
    step = max(MIN_BLOCK_BYTES, 1 << max(0, size.bit_length() - 4))
    return -(-size // step) * step


def _has_tensor_cores(cl_device: Any) -> bool:
    """Return whether this is an NVIDIA GPU that multiplies matrices of float16 and bfloat16."""
    if "cl_nv_device_attribute_query" not in cl_device.extensions.split():
        return False
    return int(cl_device.compute_capability_major_nv) >= TENSOR_CORES_CAPABILITY


@cache
def devices() -> tuple[Device, ...]:
    """Return all OpenCL devices, GPUs first."""
    cl_devices = list_devices()
    if not cl_devices:
        raise CputrainError(
            "cputrain.opencl", "needs an OpenCL device", found="none",
            do='To use the CPU as a device, pip install "cputrain[opencl]" (PoCL). For a GPU, '
            "install the OpenCL support of its driver.",
        )  # fmt: skip
    for cl_device in cl_devices:
        name_processor(cl_device)
    return tuple(Device(index, cl_device) for index, cl_device in enumerate(cl_devices))
