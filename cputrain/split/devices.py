"""Devices, asked for what not all of them have."""

from __future__ import annotations

import threading
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.overrides
from torch.utils._device import DeviceContext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from contextlib import AbstractContextManager

CPU = torch.device("cpu")

PINS = ("cuda", "xpu")
"""Devices whose drivers copy faster from memory that cannot be swapped out."""

_modes: Any = torch.overrides._get_current_function_mode_stack


def available(name: str | torch.device) -> torch.device:
    """The device of this name, with its number. Raises what torch raises where it is not there."""
    device = torch.device(name)
    if device.type == "meta":
        raise RuntimeError("tensors have no values there")
    return torch.empty(1, device=device).device


def finish(device: torch.device) -> None:
    """Wait for what was only begun there."""
    synchronize = getattr(module_of(device), "synchronize", None)
    if device.type != "cpu" and synchronize is not None:
        synchronize(*([] if device.type == "mps" else [device]))  # (there is but one "mps")


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Where it is the one that a number is left out for, "cuda" say."""
    chosen = getattr(module_of(device), "device", None)
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
        own = getattr(module_of(device), "default_generators", ())
        found += [one for one in own if one.device == device]
    return found


def is_elsewhere(device: torch.device) -> bool:
    """Whether the caller has it work in an order of his own: on a stream, or for a graph."""
    module = module_of(device)
    if device.type == "cpu" or not hasattr(module, "default_stream"):
        return False
    capturing = getattr(module, "is_current_stream_capturing", bool)
    return bool(capturing()) or module.current_stream(device) != module.default_stream(device)


class Stopwatch:
    """How long a device is at what it is asked for from now until `stop`.

    Nobody waits for a device that keeps the time itself, before `seconds` are asked for.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks: list[Any] = []
        if device.type == "cuda":  # it can be asked when it came to a point
            make: Any = torch.cuda.Event
            self._marks = [make(enable_timing=True) for _ in range(2)]
            self._marks[0].record()
        self._begin = time.perf_counter()
        self._took = 0.0

    def stop(self) -> None:
        """All of it is asked for."""
        if self._marks:
            self._marks[1].record()
        else:
            finish(self._device)
            self._took = time.perf_counter() - self._begin

    @property
    def seconds(self) -> float:
        """How long it was."""
        if not self._marks:
            return self._took
        begin, end = self._marks
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


class Aside:
    """Work that does not wait for all else that a device has been given to do."""

    def __init__(self, device: torch.device) -> None:
        self._stream = stream_of(device, "draws")
        self._ended: Any = None

    def begin(self) -> AbstractContextManager[Any]:
        """What is asked of the device within is done aside."""
        return nullcontext() if self._stream is None else module_of(self._stream.device).stream(
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
            now = module_of(device).current_stream(device)
            now.wait_event(self._ended)
            made.record_stream(now)
        return made


_streams: dict[tuple[torch.device, str], Any] = {}
_lock = threading.Lock()


def has_streams(device: torch.device) -> bool:
    """Whether it does what it is asked for in several orders."""
    return device.type != "cpu" and hasattr(module_of(device), "Stream")


def stream_of(device: torch.device, purpose: str) -> Any:
    """An order of its own; always the same one for a purpose, as each has memory of its own."""
    if not has_streams(device):
        return None
    with _lock:
        if (device, purpose) not in _streams:
            _streams[device, purpose] = module_of(device).Stream(device)
        return _streams[device, purpose]


def module_of(device: torch.device) -> Any:
    """What torch has for devices of this kind, torch.cuda say; None where it has nothing."""
    return getattr(torch, device.type, None)
