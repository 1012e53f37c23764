"""Saved states of random number generators, and their restoration."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class ProcessStates:
    """The states of the default generators of torch, Python and NumPy in this process."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        """Restore the states that were current when this object was created."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


class SamplerStates:
    """The states of the generators that a batch sampler draws from."""

    def __init__(self, sampler: Any) -> None:
        generator = getattr(getattr(sampler, "sampler", None), "generator", None)
        self._generator = generator if isinstance(generator, torch.Generator) else None
        self._generator_state = None if self._generator is None else self._generator.get_state()
        self._torch_state = torch.get_rng_state()

    def restore(self) -> None:
        """Restore the states that were current when this object was created."""
        torch.set_rng_state(self._torch_state)
        if self._generator is not None and self._generator_state is not None:
            self._generator.set_state(self._generator_state)
