"""Operators that have kernels, a file for each kind of them."""

from __future__ import annotations

from cputrain.opencl.ops import (
    composed,
    making,
    multiplying,
    normalising,
    pointwise,
    reducing,
)

__all__ = ["composed", "making", "multiplying", "normalising", "pointwise", "reducing"]
