"""Lists of kernel launches with their arguments bound, enqueued by calls into the driver."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from cputrain.machine.opencl import cl
from cputrain.opencl.device import clone_kernel, error_of_status, to_torch_error

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from cputrain.opencl.device import Device


class Launch(NamedTuple):
    """A kernel with its arguments."""

    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...] | None
    arguments: tuple[Any, ...]


class ArgumentSlot(NamedTuple):
    """An argument of a launch in a list."""

    launch: int
    argument: int


class LaunchList:
    """Launches on one device, each with a kernel object of its own that holds its arguments.

    Args:
        device: The device.
        launches: The launches in order.
    """

    def __init__(self, device: Device, launches: Iterable[Launch]) -> None:
        self._device = device
        self._kernels: list[Any] = []
        self._launches = list(launches)
        self._calls: list[tuple[Any, ...]] = []
        for launch in self._launches:
            kernel = clone_kernel(launch.kernel)
            kernel.set_args(*launch.arguments)
            self._kernels.append(kernel)
            self._calls.append(_arguments_of_call(device, kernel, launch))

    def bind(self, slots: Sequence[ArgumentSlot], value: Any) -> None:
        """Set arguments of launches to a buffer or a number of eight bytes."""
        for launch, argument in slots:
            self._kernels[launch].set_arg(argument, value)

    def enqueue(self) -> None:
        """Enqueue all launches."""
        self._device.check_process()
        enqueue = _driver_function()
        if enqueue is None:
            self._enqueue_by_pyopencl()
            return
        for arguments in self._calls:
            status = enqueue(*arguments)
            if status:
                raise error_of_status(status)

    def _enqueue_by_pyopencl(self) -> None:
        enqueue: Any = cl().enqueue_nd_range_kernel
        for kernel, launch in zip(self._kernels, self._launches, strict=True):
            try:
                enqueue(self._device.queue, kernel, launch.global_size, launch.local_size)
            except cl().Error as error:
                raise to_torch_error(error) from error


def _arguments_of_call(device: Device, kernel: Any, launch: Launch) -> tuple[Any, ...]:
    num_dimensions = len(launch.global_size)
    sizes = ctypes.c_size_t * num_dimensions
    return (
        device.queue.int_ptr, kernel.int_ptr, num_dimensions, None, sizes(*launch.global_size),
        sizes(*launch.local_size) if launch.local_size else None, 0, None, None,
    )  # fmt: skip


@cache
def _driver_function() -> Any:
    """Return clEnqueueNDRangeKernel of the library that PyOpenCL is linked with; None if unknown.

    Calling it takes a fifth less than by PyOpenCL.
    """
    try:
        function = ctypes.CDLL(cl()._cl.__file__).clEnqueueNDRangeKernel
    except (OSError, AttributeError):  # a system that does not look into linked libraries
        return None
    pointer = ctypes.c_void_p
    function.argtypes = (
        pointer, pointer, ctypes.c_uint, pointer, pointer, pointer, ctypes.c_uint, pointer, pointer,
    )  # fmt: skip
    function.restype = ctypes.c_int
    return function
