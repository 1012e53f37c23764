"""Device-generic versions of what torch has for some devices only: streams, events, generators."""

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

PINNING_DEVICES = ("cuda", "xpu")
"""Device types whose drivers copy faster from pinned memory."""

_modes: Any = torch.overrides._get_current_function_mode_stack


def available(name: str | torch.device) -> torch.device:
    """Return the device of this name with its index; raise torch's error if it is not available."""
    device = torch.device(name)
    if device.type == "meta":
        raise RuntimeError("tensors have no values there")
    return torch.empty(1, device=device).device


def finish(device: torch.device) -> None:
    """Wait for all work queued on the device."""
    synchronize = getattr(module_of(device), "synchronize", None)
    if device.type != "cpu" and synchronize is not None:
        synchronize(*([] if device.type == "mps" else [device]))  # (there is a single "mps" device)


def device_guard(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context manager in which this is the current device of its type."""
    if device.type == "cpu":
        return nullcontext()
    guard = getattr(module_of(device), "device", None)
    return nullcontext() if guard is None else guard(device)


def default_device() -> torch.device | None:
    """Return the device of torch.set_default_device or `with torch.device`, if any."""
    modes = [mode for mode in _modes() if isinstance(mode, DeviceContext)]
    return modes[-1].device if modes else None


def has_function_mode() -> bool:
    """Return whether a torch function mode other than a default device is active."""
    return not all(isinstance(mode, DeviceContext) for mode in _modes())


def generators(device: torch.device) -> list[torch.Generator]:
    """Return the generators that a model on this device draws from: the CPU's and the device's."""
    result = [torch.default_generator]
    if device.type != "cpu":
        device_generators = getattr(module_of(device), "default_generators", ())
        result += [generator for generator in device_generators if generator.device == device]
    return result


def has_custom_stream(device: torch.device) -> bool:
    """Return whether the current stream is not the default one, or captures a graph."""
    module = module_of(device)
    if device.type == "cpu" or not hasattr(module, "default_stream"):
        return False
    is_capturing = getattr(module, "is_current_stream_capturing", bool)
    return bool(is_capturing()) or module.current_stream(device) != module.default_stream(device)


class Stopwatch:
    """Time that a device needs for the work queued from now until `stop`.

    Where the device has timing events, nothing blocks before `elapsed_s` is read.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[Any] = []
        if device.type == "cuda":  # which has timing events
            new_event: Any = torch.cuda.Event
            self._events = [new_event(enable_timing=True) for _ in range(2)]
            self._events[0].record()
        self._started_at = time.perf_counter()
        self._elapsed_s = 0.0

    def stop(self) -> None:
        """Mark the end of the timed work."""
        if self._events:
            self._events[1].record()
        else:
            finish(self._device)
            self._elapsed_s = time.perf_counter() - self._started_at

    @property
    def elapsed_s(self) -> float:
        """Elapsed seconds; waits for the end of the timed work."""
        if not self._events:
            return self._elapsed_s
        start_event, end_event = self._events
        end_event.synchronize()
        return float(start_event.elapsed_time(end_event)) / 1e3


class SideStream:
    """Work on a side stream, which does not wait for other work queued on the device."""

    def __init__(self, device: torch.device) -> None:
        self._stream = side_stream(device, "draws")
        self._end_event: Any = None

    def begin(self) -> AbstractContextManager[Any]:
        """Return a context manager in which work is queued on the side stream."""
        return nullcontext() if self._stream is None else module_of(self._stream.device).stream(
            self._stream
        )  # fmt: skip

    def end(self) -> None:
        """Mark the end of the work on the side stream."""
        if self._stream is not None:
            self._end_event = self._stream.record_event()

    def to(self, tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a tensor made on the side stream for use on this device's current stream."""
        if tensor.device != device:
            with self.begin():
                return tensor.to(device)
        if self._end_event is not None:
            current_stream = module_of(device).current_stream(device)
            current_stream.wait_event(self._end_event)
            tensor.record_stream(current_stream)
        return tensor


_streams: dict[tuple[torch.device, str], Any] = {}
_lock = threading.Lock()


def has_streams(device: torch.device) -> bool:
    """Return whether the device has streams."""
    return device.type != "cpu" and hasattr(module_of(device), "Stream")


def side_stream(device: torch.device, purpose: str) -> Any:
    """Return the side stream of this device for a purpose; None if it has no streams.

    It is the same stream in each call, as the caching allocator keeps separate memory for each
    stream.
    """
    if not has_streams(device):
        return None
    with _lock:
        if (device, purpose) not in _streams:
            _streams[device, purpose] = module_of(device).Stream(device)
        return _streams[device, purpose]


def module_of(device: torch.device) -> Any:
    """Return torch's module for this device type, such as torch.cuda; None if there is none."""
    return getattr(torch, device.type, None)
