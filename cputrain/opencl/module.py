"""What stands as `torch.ocl`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from cputrain.opencl.device import HERE, Forked, devices
from cputrain.opencl.generator import generator_of

made: Any = ModuleType("torch.ocl")
made.__doc__ = __doc__
made._initialized = True  # (checkpoints ask, before they keep random numbers)


def _number(device: Any = None) -> int:
    if device is None:
        return HERE.index
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
    """The one that is meant where a number is left out."""
    return HERE.index


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
    """Have the random numbers of all devices begin anew."""
    for one in made.default_generators:
        one.manual_seed(seed)


def manual_seed(seed: int) -> None:
    """The same, of the first."""
    made.default_generators[current_device()].manual_seed(seed)


def get_rng_state(device: Any = None) -> torch.Tensor:
    """Where its random numbers are."""
    return generator_of(_number(device)).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    """Have them go on from there."""
    generator_of(_number(device)).set_state(new_state)


def set_device(device: Any) -> None:
    """Have this one be meant where a number is left out."""
    number = _number(device)
    if number not in range(device_count()):
        raise IndexError(f"there is no {device}: there are {device_count()}")
    HERE.index = number


class device:  # noqa: N801  (torch's name)
    """The same, for a while."""

    def __init__(self, device: Any) -> None:
        self._index = _number(device)
        self._before = 0

    def __enter__(self) -> None:
        self._before = current_device()
        set_device(self._index)

    def __exit__(self, *_: object) -> None:
        set_device(self._before)


def _is_in_bad_fork() -> bool:
    return any(isinstance(one, Forked) for one in devices())


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the only type that autocast may compute in: for others torch warns, and leaves it off.

    No kernel computes in fewer bits than float32.
    """
    return [torch.float32]


for _function in (
    is_available, is_initialized, device_count, current_device, get_device_name, synchronize,
    empty_cache, memory_stats, manual_seed, manual_seed_all, get_rng_state, set_rng_state,
    set_device, device, _is_in_bad_fork, get_amp_supported_dtype,
):  # fmt: skip
    setattr(made, _function.__name__, _function)
made.default_generators = tuple(generator_of(index) for index in range(device_count()))
