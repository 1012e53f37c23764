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

    ArgumentFill = tuple[int, int]


class KernelLaunch:
    """A recorded kernel launch."""

    def __init__(
        self, device: Device, kernel: Any, items: Any, group: Any, arguments: list[Any],
        fills: tuple[ArgumentFill, ...],
    ) -> None:  # fmt: skip
        self.device, self.kernel, self.items, self.group = device, kernel, items, group
        self.arguments = arguments
        """Arguments in order; None where `fills` has an entry."""
        self.fills = fills
        """(Index of the argument, number of the recorded value to put there) pairs."""


class Recorder:
    """Records a trace. Values are numbered in order: first the buffers of tensor arguments."""

    def __init__(self, buffers: Sequence[Any]) -> None:
        self.allocations: dict[int, tuple[Device, int, int]] = {}
        """Allocations by number: device, block size and storage size in bytes."""
        self.draws: dict[int, tuple[Generator, int]] = {}
        """Random draws by the seed's number; the offset has the next number."""
        self.launches: list[KernelLaunch] = []
        self.is_broken = False
        """Whether the operator did something that a replay cannot do."""
        self._kept_alive = list(buffers)
        self._numbers = {id(buffer): number for number, buffer in enumerate(buffers)}

    def is_equal_to(self, trace: Recorder) -> bool:
        """Return whether two traces are equal.

        A finalizer or signal handler may launch kernels during one trace, but hardly in two.
        """
        return (
            [vars(launch) for launch in self.launches]
            == [vars(launch) for launch in trace.launches]
            and self.allocations == trace.allocations
            and self.draws == trace.draws
        )

    def drop_references(self) -> Recorder:
        """Drop references to buffers, held so that their ids stay unique; return self."""
        self._kept_alive, self._numbers = [], {}
        return self

    def number_of(self, value: Any) -> int | None:
        """Return the latest number of a value; a freed buffer may be allocated again."""
        return self._numbers.get(id(value))

    def _assign_number(self, value: Any) -> int:
        number = self._numbers[id(value)] = len(self._kept_alive)
        self._kept_alive.append(value)
        return number

    def record_allocation(self, device: Device, size: int, used: int, buffer: Any) -> None:
        """Record an allocation."""
        self.allocations[self._assign_number(buffer)] = (device, size, used)

    def record_draw(self, generator: Generator, count: int, seed: Any, first: Any) -> None:
        """Record a draw of random numbers."""
        self.draws[self._assign_number(seed)] = (generator, count)
        self._assign_number(first)

    def record_launch(
        self, device: Device, kernel: Any, items: Any, group: Any, values: Any
    ) -> None:
        """Record a kernel launch."""
        arguments, fills = list(values), []
        for index, value in enumerate(values):
            number = self._numbers.get(id(value))
            if number is not None:
                fills.append((index, number))
                arguments[index] = None
            elif device.is_writable_buffer(value):
                self.is_broken = True  # a buffer that is neither an argument nor allocated here
        self.launches.append(KernelLaunch(device, kernel, items, group, arguments, tuple(fills)))


class _TracingState(threading.local):
    """Recorder of this thread, if a trace is running."""

    recorder: Recorder | None = None


TRACING = _TracingState()


def cannot_be_repeated() -> None:
    """Mark the running trace as broken: the caller does more than launch kernels."""
    if TRACING.recorder is not None:
        TRACING.recorder.is_broken = True
