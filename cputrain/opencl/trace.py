"""Trace of an operator: its allocations, random numbers and kernel launches.

A trace can be replayed with other tensors of the same metadata without the operator's Python: see
replay.py.
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
    """A recorded kernel launch."""

    def __init__(
        self, device: Device, kernel: Any, items: Any, group: Any, arguments: list[Any],
        fills: tuple[Fill, ...],
    ) -> None:  # fmt: skip
        self.device, self.kernel, self.items, self.group = device, kernel, items, group
        self.arguments = arguments
        """Arguments in order; None where `fills` has an entry."""
        self.fills = fills
        """(Index of the argument, number of the recorded value to put there) pairs."""


class Recorder:
    """Records a trace. Values are numbered in order: first the buffers of tensor arguments."""

    def __init__(self, given: Sequence[Any]) -> None:
        self.rooms: dict[int, tuple[Device, int, int]] = {}
        """Allocations by number: device, block size and storage size in bytes."""
        self.draws: dict[int, tuple[Generator, int]] = {}
        """Random draws by the seed's number; the offset has the next number."""
        self.asked: list[KernelLaunch] = []
        self.is_broken = False
        """Whether the operator did something that a replay cannot do."""
        self._held = list(given)
        self._numbers = {id(one): number for number, one in enumerate(given)}

    def is_like(self, other: Recorder) -> bool:
        """Return whether two traces are equal.

        A finalizer or signal handler may launch kernels during one trace, but hardly in two.
        """
        return (
            [vars(one) for one in self.asked] == [vars(one) for one in other.asked]
            and self.rooms == other.rooms
            and self.draws == other.draws
        )

    def forget(self) -> Recorder:
        """Drop references to buffers, held so that their ids stay unique; return self."""
        self._held, self._numbers = [], {}
        return self

    def number_of(self, one: Any) -> int | None:
        """Return the latest number of a value; a freed buffer may be allocated again."""
        return self._numbers.get(id(one))

    def _add(self, one: Any) -> int:
        number = self._numbers[id(one)] = len(self._held)
        self._held.append(one)
        return number

    def allocated(self, device: Device, size: int, used: int, buffer: Any) -> None:
        """Record an allocation."""
        self.rooms[self._add(buffer)] = (device, size, used)

    def drew(self, generator: Generator, count: int, seed: Any, first: Any) -> None:
        """Record a draw of random numbers."""
        self.draws[self._add(seed)] = (generator, count)
        self._add(first)

    def launched(self, device: Device, kernel: Any, items: Any, group: Any, given: Any) -> None:
        """Record a kernel launch."""
        arguments, fills = list(given), []
        for place, one in enumerate(given):
            number = self._numbers.get(id(one))
            if number is not None:
                fills.append((place, number))
                arguments[place] = None
            elif device.may_change(one):
                self.is_broken = True  # a buffer that is neither an argument nor allocated here
        self.asked.append(KernelLaunch(device, kernel, items, group, arguments, tuple(fills)))


class _Now(threading.local):
    """Recorder of this thread, if a trace is running."""

    recorder: Recorder | None = None


NOW = _Now()


def cannot_be_repeated() -> None:
    """Mark the running trace as broken: the caller does more than launch kernels."""
    if NOW.recorder is not None:
        NOW.recorder.is_broken = True
