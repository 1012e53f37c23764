"""A process pool that survives killed workers, and parallel filling of large tensors."""

from __future__ import annotations

from cputrain.pool.fill import fill
from cputrain.pool.pool import Pool

__all__ = ["Pool", "fill"]
