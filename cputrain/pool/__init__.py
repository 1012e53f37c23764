"""Processes that share the work, and a tensor filled by all of them."""

from __future__ import annotations

from cputrain.pool.fill import fill
from cputrain.pool.pool import Pool

__all__ = ["Pool", "fill"]
