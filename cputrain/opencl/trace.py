"""What an operator asks for while its kernel runs: memory, random numbers, kernels of devices.

With that written down it can be asked for again, with other tensors of the same forms, without
running anything but that: see repeated.py.
"""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.opencl.device import Device
    from cputrain.opencl.generator import Generator

    Fill = tuple[int, int]


class KernelLaunch:
    """A kernel that was asked for."""

    def __init__(
        self, device: Device, kernel: Any, items: Any, group: Any, arguments: list[Any],
        fills: tuple[Fill, ...],
    ) -> None:  # fmt: skip
        self.device, self.kernel, self.items, self.group = device, kernel, items, group
        self.arguments = arguments
        """Those that are always the same, in their places."""
        self.fills = fills
        """Of the others, each: its place, and the number of what is there."""


class Recorder:
    """Writes down what is asked for. Whatever it may be is numbered; first come given memories."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.rooms: dict[int, tuple[Device, int, int]] = {}
        """By number: where memory was asked for, how much, and how much of that is used."""
        self.draws: dict[int, tuple[Generator, int]] = {}
        """By the number of the seed; the next is that of the first random number."""
        self.asked: list[KernelLaunch] = []
        self.is_broken = False
        """Whether something was done that no repetition would do."""
        self._held = list(given)
        self._numbers = {id(one): number for number, one in enumerate(given)}

    def is_like(self, other: Recorder) -> bool:
        """Whether the same was asked for. A finaliser or a handler that asked for something of its
        own meanwhile does not do so twice."""
        return (
            [vars(one) for one in self.asked] == [vars(one) for one in other.asked]
            and self.rooms == other.rooms
            and self.draws == other.draws
        )

    def forget(self) -> Recorder:
        """What was only held so that it can be told apart is free."""
        self._held, self._numbers = [], {}
        return self

    def number_of(self, one: Any) -> int | None:
        """What it is by now: a buffer may be another's memory after a while."""
        return self._numbers.get(id(one))

    def _add(self, one: Any) -> int:
        number = self._numbers[id(one)] = len(self._held)
        self._held.append(one)
        return number

    def allocated(self, device: Device, size: int, used: int, buffer: Any) -> None:
        """Memory was asked for."""
        self.rooms[self._add(buffer)] = (device, size, used)

    def drew(self, generator: Generator, count: int, seed: Any, first: Any) -> None:
        """So were random numbers."""
        self.draws[self._add(seed)] = (generator, count)
        self._add(first)

    def launched(self, device: Device, kernel: Any, items: Any, group: Any, given: Any) -> None:
        """So was a kernel."""
        arguments, fills = list(given), []
        for place, one in enumerate(given):
            number = self._numbers.get(id(one))
            if number is not None:
                fills.append((place, number))
                arguments[place] = None
            elif device.may_change(one):
                self.is_broken = True  # it is somebody's, who is unknown here
        self.asked.append(KernelLaunch(device, kernel, items, group, arguments, tuple(fills)))


class _Now(threading.local):
    """Of this thread."""

    recorder: Recorder | None = None


NOW = _Now()


def cannot_be_repeated() -> None:
    """Said by what does more than ask a device for kernels."""
    if NOW.recorder is not None:
        NOW.recorder.is_broken = True
