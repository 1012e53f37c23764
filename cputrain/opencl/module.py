"""What stands as `torch.ocl`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from cputrain.opencl.device import devices

made = ModuleType("torch.ocl")
made.__doc__ = __doc__


def _number(device: Any = None) -> int:
    if device is None:
        return 0
    if isinstance(device, int):
        return device
    return torch.device(device).index or 0


def is_available() -> bool:
    """Whether there is one."""
    return device_count() > 0


def is_initialized() -> bool:
    """Whether one can be used."""
    return True


def device_count() -> int:
    """How many there are."""
    return len(devices())


def current_device() -> int:
    """The one that is meant by "ocl"."""
    return 0


def get_device_name(device: Any = None) -> str:
    """As its driver calls it."""
    return devices()[_number(device)].name


def synchronize(device: Any = None) -> None:
    """Wait for all that was asked of it."""
    devices()[_number(device)].finish()


def empty_cache() -> None:
    """Give memory back that is kept for tensors to come."""
    for one in devices():
        one.empty_cache()


def memory_stats(device: Any = None) -> dict[str, int]:
    """Bytes: in tensors, kept for the next, and the most that was in tensors."""
    return devices()[_number(device)].stats().as_json()


def manual_seed_all(seed: int) -> None:
    """Random numbers are those of the CPU's generator, which torch.manual_seed sees to."""


def manual_seed(seed: int) -> None:
    """Of the CPU's generator."""
    torch.default_generator.manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:  # noqa: ARG001  (torch's own has it)
    """The CPU's generator's."""
    return torch.get_rng_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:  # noqa: ARG001
    """The CPU's generator's."""
    torch.set_rng_state(new_state)


def set_device(device: Any) -> None:
    """There is one that is meant by "ocl": the first."""
    if _number(device) not in range(device_count()):
        raise IndexError(f"there is no {device}: there are {device_count()}")


def _is_in_bad_fork() -> bool:
    return False


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Types that autocast may compute in."""
    return []


for _function in (
    is_available, is_initialized, device_count, current_device, get_device_name, synchronize,
    empty_cache, memory_stats, manual_seed, manual_seed_all, get_rng_state, set_rng_state,
    set_device, _is_in_bad_fork, get_amp_supported_dtype,
):  # fmt: skip
    setattr(made, _function.__name__, _function)
