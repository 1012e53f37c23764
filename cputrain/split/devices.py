"""Devices, asked for what not all of them have."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import torch.overrides
from torch.utils._device import DeviceContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

CPU = torch.device("cpu")

_modes: Any = torch.overrides._get_current_function_mode_stack


def available(name: str | torch.device) -> torch.device:
    """The device of this name, with its number. Raises what torch raises where it is not there."""
    device = torch.device(name)
    if device.type == "meta":
        raise RuntimeError("tensors have no values there")
    return torch.empty(1, device=device).device


def finish(device: torch.device) -> None:
    """Wait for what was only begun there."""
    synchronize = getattr(_module(device), "synchronize", None)
    if device.type != "cpu" and synchronize is not None:
        synchronize(device)


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Where it is the one that a number is left out for, "cuda" say."""
    chosen = getattr(_module(device), "device", None)
    return nullcontext() if device.type == "cpu" or chosen is None else chosen(device)


def default_device() -> torch.device | None:
    """That of torch.set_default_device, or of `with torch.device`, if any."""
    modes = [mode for mode in _modes() if isinstance(mode, DeviceContext)]
    return modes[-1].device if modes else None


def is_watched() -> bool:
    """Whether anything but a default device sees each call of torch's functions."""
    return not all(isinstance(mode, DeviceContext) for mode in _modes())


def generators(device: torch.device) -> list[torch.Generator]:
    """Those that a model on this device draws from: the CPU's, and its own."""
    found = [torch.default_generator]
    if device.type != "cpu":
        own = getattr(_module(device), "default_generators", ())
        found += [one for one in own if one.device == device]
    return found


def is_elsewhere(device: torch.device) -> bool:
    """Whether the caller has it work in an order of his own: on a stream, or for a graph."""
    module = _module(device)
    if device.type == "cpu" or not hasattr(module, "default_stream"):
        return False
    capturing = getattr(module, "is_current_stream_capturing", bool)
    return bool(capturing()) or module.current_stream(device) != module.default_stream(device)


class Aside:
    """Work that does not wait for all else that a device has been given to do."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _aside(device)
        self._ended: Any = None

    def begin(self) -> AbstractContextManager[Any]:
        """What is asked of the device within is done aside."""
        return nullcontext() if self._stream is None else _module(self._stream.device).stream(
            self._stream
        )  # fmt: skip

    def end(self) -> None:
        """All of it is asked for."""
        if self._stream is not None:
            self._ended = self._stream.record_event()

    def given(self, made: torch.Tensor, device: torch.device) -> torch.Tensor:
        """What was made, on this device."""
        if made.device != device:
            with self.begin():
                return made.to(device)
        if self._ended is not None:
            now = _module(device).current_stream(device)
            now.wait_event(self._ended)
            made.record_stream(now)
        return made


@cache
def _aside(device: torch.device) -> Any:
    """Its second stream: always the same one, as each has memory of its own."""
    module = _module(device)
    return None if device.type == "cpu" or not hasattr(module, "Stream") else module.Stream(device)


def _module(device: torch.device) -> Any:
    return getattr(torch, device.type, None)
