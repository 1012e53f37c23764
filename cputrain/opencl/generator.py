"""Random number generator of a device: counter-based Philox, with equal numbers on all devices."""

from __future__ import annotations

import threading
from functools import cache

import torch

from cputrain.opencl.trace import TRACING

STATE_BYTES = 16
"""Size of the state in bytes: seed and offset, 8 bytes each."""


class Generator:
    """The part of the torch.Generator interface that a device's default generator needs."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._seed: int | None = None
        self._offset = 0

    @property
    def device(self) -> torch.device:
        """Device of the generator."""
        return torch.device("ocl", self._index)

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed and reset the offset to 0."""
        with self._lock:
            self._seed, self._offset = seed & ((1 << 64) - 1), 0
        return self

    def initial_seed(self) -> int:
        """Return the seed: the CPU generator's seed until a seed is set."""
        return torch.initial_seed() if self._seed is None else self._seed

    def get_state(self) -> torch.Tensor:
        """Return the state as a tensor of 16 bytes."""
        with self._lock:
            state = self.initial_seed().to_bytes(8, "little") + self._offset.to_bytes(8, "little")
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> Generator:
        """Restore a state of `get_state`."""
        if state.numel() != STATE_BYTES or state.dtype is not torch.uint8:
            raise RuntimeError(
                f"the state of an ocl generator is {STATE_BYTES} bytes, not {state.numel()} of "
                f"{state.dtype}: this state is of another device's generator"
            )
        data = bytes(state.cpu().tolist())
        with self._lock:
            self._seed = int.from_bytes(data[:8], "little")
            self._offset = int.from_bytes(data[8:], "little")
        return self

    def reserve(self, count: int) -> tuple[int, int]:
        """Reserve `count` random numbers; return the seed and the offset of the first."""
        with self._lock:
            seed = self._seed = self.initial_seed()
            first, self._offset = self._offset, self._offset + count
        if TRACING.recorder is not None:
            seed, first = TracedInt(seed), TracedInt(first)
            TRACING.recorder.record_draw(self, count, seed, first)
        return seed, first


class TracedInt(int):
    """An int with its own identity, by which the recorder finds it among kernel arguments."""


@cache
def generator_of(index: int) -> Generator:
    """Return the default generator of a device."""
    return Generator(index)
