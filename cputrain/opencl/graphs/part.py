"""A range of captured launches whose tensors may be others from replay to replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cputrain.opencl.generator import generator_of
from cputrain.opencl.graphs.capture import Draw
from cputrain.opencl.graphs.launch_list import ArgumentSlot, LaunchList

if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device
    from cputrain.opencl.graphs.capture import Capture
    from cputrain.opencl.graphs.launch_list import Launch


class Part:
    """Launches of a capture in a range, and what is bound to them now.

    Args:
        device: The device.
        launches: All launches of the capture.
        draws: All its draws of random numbers.
        span: The range.
    """

    def __init__(
        self, device: Device, launches: list[Launch], draws: list[Draw], span: range
    ) -> None:
        self._device = device
        self._launches = LaunchList(device, launches[span.start : span.stop])
        drawn = [
            Draw(draw.num_values, within(draw.seeds, span), within(draw.offsets, span))
            for draw in draws
        ]
        self._draws = [draw for draw in drawn if draw.seeds]
        self._num_drawn = sum(draw.num_values for draw in self._draws)
        self._bound: dict[tuple[ArgumentSlot, ...], Any] = {}
        self._seed: int | None = None

    @property
    def has_draws(self) -> bool:
        """Return whether the launches take random numbers."""
        return bool(self._draws)

    def bind(self, slots: tuple[ArgumentSlot, ...], buffer: Any) -> None:
        """Have the launches use a buffer."""
        if slots and self._bound.get(slots) is not buffer:
            self._launches.bind(slots, buffer)
            self._bound[slots] = buffer

    def run(self) -> None:
        """Enqueue the launches, with random numbers of their own."""
        with self._device.lock:
            if self._draws:
                self._bind_random_numbers()
            self._launches.enqueue()

    def _bind_random_numbers(self) -> None:
        seed, offset = generator_of(self._device.index).reserve(self._num_drawn)
        for draw in self._draws:
            if seed != self._seed:
                self._launches.bind(draw.seeds, np.uint64(seed))
            self._launches.bind(draw.offsets, np.uint64(offset))
            offset += draw.num_values
        self._seed = seed


class BufferSlots(NamedTuple):
    """Arguments of the launches of a forward and of a backward that take one buffer."""

    forward: tuple[ArgumentSlot, ...]
    backward: tuple[ArgumentSlot, ...]


class Uses:
    """Which launches of a capture use which buffers.

    Args:
        capture: The launches.
        num_forward: How many of them are those of the forward; the others are the backward's.
    """

    def __init__(self, capture: Capture, num_forward: int) -> None:
        self._spans = range(num_forward), range(num_forward, len(capture.launches))
        self._slots: dict[int, list[ArgumentSlot]] = {}
        for number, launch in enumerate(capture.launches):
            for index, value in enumerate(launch.arguments):
                if capture.device.is_writable_buffer(value):
                    self._slots.setdefault(id(value), []).append(ArgumentSlot(number, index))

    @property
    def buffers(self) -> set[int]:
        """Return the ids of all buffers that launches use."""
        return set(self._slots)

    def slots(self, buffer: Any, begin: int = 0) -> BufferSlots:
        """Return the arguments that take a buffer, in the launches from a number on."""
        slots = [slot for slot in self._slots.get(id(buffer), ()) if slot.launch >= begin]
        return BufferSlots(*(within(slots, span) for span in self._spans))


def within(slots: Any, span: range) -> tuple[ArgumentSlot, ...]:
    """Return the arguments of launches in a range, with the launches counted from its start."""
    return tuple(
        ArgumentSlot(slot.launch - span.start, slot.argument)
        for slot in slots
        if slot.launch in span
    )
