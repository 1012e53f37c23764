"""Random states as they were, to be put back."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class ProcessStates:
    """Those of this process: torch's, Python's and NumPy's."""

    def __init__(self) -> None:
        self._torch = torch.get_rng_state()
        self._python = random.getstate()
        numpy = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random.get_state()

    def restore(self) -> None:
        """Put them back."""
        torch.set_rng_state(self._torch)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)


class SamplerStates:
    """Those that a sampler draws from, as they were."""

    def __init__(self, sampler: Any) -> None:
        generator = getattr(getattr(sampler, "sampler", None), "generator", None)
        self._generator = generator if isinstance(generator, torch.Generator) else None
        self._own = None if self._generator is None else self._generator.get_state()
        self._state = torch.get_rng_state()

    def restore(self) -> None:
        """Put them back."""
        torch.set_rng_state(self._state)
        if self._generator is not None and self._own is not None:
            self._generator.set_state(self._own)
