"""The module `torch.ocl`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from cputrain.opencl.autocast import DTYPES
from cputrain.opencl.device import CURRENT_DEVICE, ForkedDevice, devices
from cputrain.opencl.generator import generator_of

torch_ocl: Any = ModuleType("torch.ocl")
torch_ocl.__doc__ = __doc__
torch_ocl._initialized = True  # (torch.utils.checkpoint reads this before it saves the RNG state)


def _index_of(device: Any = None) -> int:
    if device is None:
        return CURRENT_DEVICE.index
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


def is_available() -> bool:
    """Return whether there is an OpenCL device."""
    return device_count() > 0


def is_initialized() -> bool:
    """Return True: there is no lazy initialization."""
    return True


def device_count() -> int:
    """Return the number of OpenCL devices."""
    return len(devices())


def current_device() -> int:
    """Return the index of this thread's current device."""
    return CURRENT_DEVICE.index


def get_device_name(device: Any = None) -> str:
    """Return the device's name, as the driver reports it."""
    return devices()[_index_of(device)].name


def synchronize(device: Any = None) -> None:
    """Wait until all enqueued commands of the device have finished."""
    devices()[_index_of(device)].finish()


def empty_cache() -> None:
    """Free the cached memory of all devices."""
    for ocl_device in devices():
        ocl_device.empty_cache()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Return bytes allocated in tensors, reserved (with the cache), and the peak allocated."""
    return devices()[_index_of(device)].stats().as_json()


def manual_seed_all(seed: int) -> None:
    """Seed the generators of all devices."""
    for generator in torch_ocl.default_generators:
        generator.manual_seed(seed)


def manual_seed(seed: int) -> None:
    """Seed the generator of the current device."""
    torch_ocl.default_generators[current_device()].manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Return the state of the device's generator."""
    return generator_of(_index_of(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Set the state of the device's generator."""
    generator_of(_index_of(device)).set_state(new_state)


def set_device(device: Any) -> None:
    """Set this thread's current device."""
    index = _index_of(device)
    if index not in range(device_count()):
        raise IndexError(f"there is no {device}: there are {device_count()}")
    CURRENT_DEVICE.index = index


class device:  # noqa: N801  (torch's name)
    """Context manager that sets this thread's current device."""

    def __init__(self, device: Any) -> None:
        self._index = _index_of(device)
        self._previous_index = 0

    def __enter__(self) -> None:
        self._previous_index = current_device()
        set_device(self._index)

    def __exit__(self, *_: object) -> None:
        set_device(self._previous_index)


def _is_in_bad_fork() -> bool:
    return any(isinstance(ocl_device, ForkedDevice) for ocl_device in devices())


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that autocast supports; torch warns of others, and disables autocast."""
    return list(DTYPES)


for _function in (
    is_available, is_initialized, device_count, current_device, get_device_name, synchronize,
    empty_cache, memory_stats, manual_seed, manual_seed_all, get_rng_state, set_rng_state,
    set_device, device, _is_in_bad_fork, get_amp_supported_dtype,
):  # fmt: skip
    setattr(torch_ocl, _function.__name__, _function)
torch_ocl.default_generators = tuple(generator_of(index) for index in range(device_count()))
