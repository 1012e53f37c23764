"""Capture: a device whose launches are written down instead of enqueued."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

from cputrain.opencl.device import Device, DeviceMemory, written_by
from cputrain.opencl.generator import Generator, TracedInt, generator_of
from cputrain.opencl.graphs.launch_list import ArgumentSlot, Launch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.opencl.device import Block


REFUSED = " while a graph is captured"
"""What follows in an error on what cannot be captured."""


class Draw(NamedTuple):
    """Random numbers that a captured operator draws, and where its launches take their position."""

    num_values: int
    seeds: tuple[ArgumentSlot, ...]
    offsets: tuple[ArgumentSlot, ...]


class Capture:
    """What operators of one thread launch on a device between `begin` and `end`.

    Args:
        device: The device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.thread = threading.get_ident()
        self.launches: list[Launch] = []
        self.drawn: list[tuple[int, int, int]] = []
        """Of each draw its count, its seed and its offset, which launches hold as they are."""
        self.freed: dict[int, list[Block]] = {}
        """Blocks that were released meanwhile, by size; they are reused by what is captured."""
        self.born: dict[int, int] = {}
        """By a buffer's id: how many launches there were when its memory was allocated last."""
        self._variable: set[int] = set()
        """Ids of buffers born here whose content depends on memory from outside."""
        self._constants: list[Launch] = []
        """Launches that have not run yet whose results are the same in each replay."""
        self._generator = generator_of(device.index)
        self._random_state = self._generator.get_state()

    def begin(self) -> None:
        """Let the device's launches be captured."""
        CAPTURES[self.device] = self
        GENERATORS[self._generator] = self
        self.device.__class__ = CapturingDevice
        self._generator.__class__ = CapturingGenerator

    def end(self) -> list[Any]:
        """Let the device enqueue again, and return the buffers of launches, which are pinned.

        Random numbers go on where they were before `begin`.
        """
        self.device.__class__ = Device
        self._generator.__class__ = Generator
        self._generator.set_state(self._random_state)
        del CAPTURES[self.device], GENERATORS[self._generator]
        buffers = self._buffers()
        self.device.pin(buffers)
        for blocks in self.freed.values():
            for block in blocks:
                self.device.release(block)
        return buffers

    def add(self, launch: Launch) -> None:
        """Write down a launch."""
        self.launches.append(launch)
        buffers = [
            (id(value), is_written)
            for value, is_written in zip(launch.arguments, written_by(launch.kernel), strict=True)
            if self.device.is_writable_buffer(value)
        ]
        is_constant = all(
            key in self.born and key not in self._variable for key, _ in buffers
        ) and not any(type(value) is TracedInt for value in launch.arguments)
        if is_constant:
            self._constants.append(launch)
        else:
            self._variable.update(key for key, is_written in buffers if is_written)

    def allocate(self, memory: DeviceMemory) -> None:
        """Note that memory has been allocated."""
        key = id(memory.buffer)
        self.born[key] = len(self.launches)
        self._variable.discard(key)

    def run_constants(self, memory: DeviceMemory) -> bool:
        """Enqueue what a memory depends on; return False if it depends on memory from outside."""
        key = id(memory.buffer)
        if key not in self.born or key in self._variable:
            return False
        launches, self._constants = self._constants, []
        for launch in launches:
            Device.run(self.device, *launch)
        return True

    @property
    def is_of_this_thread(self) -> bool:
        """Return whether the calling thread is the one whose operators are captured."""
        return threading.get_ident() == self.thread

    def _buffers(self) -> list[Any]:
        """Return the writable buffers that launches use, each once."""
        arguments = (value for launch in self.launches for value in launch.arguments)
        writable = filter(self.device.is_writable_buffer, arguments)
        return list({id(buffer): buffer for buffer in writable}.values())

    def draws(self) -> list[Draw]:
        """Return the draws of random numbers, with the arguments that depend on them."""
        slots: dict[int, list[ArgumentSlot]] = {}
        for number, launch in enumerate(self.launches):
            for index, value in enumerate(launch.arguments):
                if type(value) is TracedInt:
                    slots.setdefault(id(value), []).append(ArgumentSlot(number, index))
        return [
            Draw(count, tuple(slots.get(id(seed), ())), tuple(slots.get(id(first), ())))
            for count, seed, first in self.drawn
        ]


CAPTURES: dict[Device, Capture] = {}
"""The capture of each device that is capturing."""

GENERATORS: dict[Generator, Capture] = {}
"""The same by the device's generator."""


class CapturingDevice(Device):
    """A device while launches of one thread are captured; those of others are enqueued."""

    def allocate(self, size: int, used: int) -> DeviceMemory:
        capture = _capture_of(self)
        if capture is None:
            return super().allocate(size, used)
        if freed := capture.freed.get(size):
            super().release(freed.pop())  # (into the cache, of which the newest block is taken)
        memory = super().allocate(size, used)
        capture.allocate(memory)
        return memory

    def run(self, kernel: Any, global_size: Any, local_size: Any, arguments: Sequence[Any]) -> None:
        capture = _capture_of(self)
        if capture is None:
            super().run(kernel, global_size, local_size, arguments)
        else:
            capture.add(Launch(kernel, global_size, local_size, tuple(arguments)))

    def release(self, block: Block) -> None:
        capture = _capture_of(self)
        if capture is None or id(block[1]) in self.pinned:
            super().release(block)
        else:
            capture.freed.setdefault(block[0], []).append(block)

    def finish(self, memory: DeviceMemory | None = None) -> None:
        capture = _capture_of(self)
        if capture is not None and memory is not None and capture.run_constants(memory):
            self.wait()
            return
        refuse(f"ocl:{self.index} cannot wait for its commands")
        super().finish()


def _capture_of(device: Device) -> Capture | None:
    """Return what the calling thread captures on a device; None if it does not."""
    capture = CAPTURES.get(device)  # (another thread may have ended its capture meanwhile)
    return capture if capture is not None and capture.is_of_this_thread else None


class CapturingGenerator(Generator):
    """A generator while a graph is captured: its numbers can be told among launches' arguments."""

    def reserve(self, count: int) -> tuple[int, int]:
        seed, first = super().reserve(count)
        capture = GENERATORS.get(self)
        if capture is not None and capture.is_of_this_thread:
            if type(seed) is not TracedInt:
                seed, first = TracedInt(seed), TracedInt(first)
            capture.drawn.append((count, seed, first))
        return seed, first


def is_capturing() -> bool:
    """Return whether launches of this thread are captured, on any device."""
    return any(capture.is_of_this_thread for capture in list(CAPTURES.values()))


def refuse(what: str) -> None:
    """Raise an error if the calling thread is captured."""
    if is_capturing():
        raise RuntimeError(
            f"{what}{REFUSED}: operators are written down and have no values yet. Read values, "
            "copy from the CPU, and call operators without an OpenCL kernel before capture_begin() "
            "or after capture_end()."
        )
