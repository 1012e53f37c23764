"""Lists of kernel launches with their arguments bound, enqueued by calls into the driver."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from cputrain.machine.opencl import cl
from cputrain.opencl.device import clone_kernel, error_of_status

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
        self._held: list[Any] = []
        self._calls: list[tuple[Any, ...]] = []
        for launch in launches:
            kernel = clone_kernel(launch.kernel)
            kernel.set_args(*launch.arguments)
            self._kernels.append(kernel)
            self._held.append(launch.arguments)
            self._calls.append(_arguments_of_call(device, kernel, launch))

    def __len__(self) -> int:
        return len(self._calls)

    def bind(self, slots: Sequence[ArgumentSlot], value: Any) -> None:
        """Set arguments of launches to a buffer or a number of eight bytes."""
        for launch, argument in slots:
            self._kernels[launch].set_arg(argument, value)

    def enqueue(self) -> None:
        """Enqueue all launches."""
        self._device.check_process()
        enqueue = _driver().clEnqueueNDRangeKernel
        for arguments in self._calls:
            status = enqueue(*arguments)
            if status:
                raise error_of_status(status)


def _arguments_of_call(device: Device, kernel: Any, launch: Launch) -> tuple[Any, ...]:
    num_dimensions = len(launch.global_size)
    sizes = ctypes.c_size_t * num_dimensions
    return (
        device.queue.int_ptr, kernel.int_ptr, num_dimensions, None, sizes(*launch.global_size),
        sizes(*launch.local_size) if launch.local_size else None, 0, None, None,
    )  # fmt: skip


@cache
def _driver() -> Any:
    """Return the OpenCL library that PyOpenCL is linked with."""
    library = ctypes.CDLL(cl()._cl.__file__)
    size = ctypes.c_void_p
    library.clEnqueueNDRangeKernel.argtypes = (
        size, size, ctypes.c_uint, size, size, size, ctypes.c_uint, size, size,
    )  # fmt: skip
    library.clEnqueueNDRangeKernel.restype = ctypes.c_int
    return library
