"""The random numbers of a device: Philox, a counter under a seed; the same on every device."""

from __future__ import annotations

import threading
from functools import cache

import torch

from cputrain.opencl.trace import NOW

STATE = 16
"""Bytes: the seed, and how many numbers were drawn."""


class Generator:
    """What torch.Generator is, as far as a device's own is asked."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._seed: int | None = None
        self._drawn = 0

    @property
    def device(self) -> torch.device:
        """Whose it is."""
        return torch.device("ocl", self._index)

    def manual_seed(self, seed: int) -> Generator:
        """Begin anew, under this one."""
        with self._lock:
            self._seed, self._drawn = seed & ((1 << 64) - 1), 0
        return self

    def initial_seed(self) -> int:
        """What it began under: the CPU's, until it is given another."""
        return torch.initial_seed() if self._seed is None else self._seed

    def get_state(self) -> torch.Tensor:
        """As bytes."""
        with self._lock:
            state = self.initial_seed().to_bytes(8, "little") + self._drawn.to_bytes(8, "little")
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> Generator:
        """As it was."""
        if state.numel() != STATE or state.dtype is not torch.uint8:
            raise RuntimeError(
                f"the state of an ocl generator is {STATE} bytes, not {state.numel()} of "
                f"{state.dtype}: it is another device's"
            )
        both = bytes(state.cpu().tolist())
        with self._lock:
            self._seed = int.from_bytes(both[:8], "little")
            self._drawn = int.from_bytes(both[8:], "little")
        return self

    def take(self, count: int) -> tuple[int, int]:
        """The seed, and the first of so many numbers."""
        with self._lock:
            seed = self._seed = self.initial_seed()
            first, self._drawn = self._drawn, self._drawn + count
        if NOW.recorder is not None:
            seed, first = _Drawn(seed), _Drawn(first)
            NOW.recorder.drew(self, count, seed, first)
        return seed, first


class _Drawn(int):
    """A number that is an object of its own, by which it is known wherever it is used."""


@cache
def generator_of(index: int) -> Generator:
    """The one of this device."""
    return Generator(index)
