"""Operators that have kernels, a file for each kind of them."""

from __future__ import annotations

from cputrain.opencl.ops import (
    channels,
    composed,
    convolving,
    losses,
    making,
    multiplying,
    normalising,
    pointwise,
    pooling,
    reducing,
)

__all__ = ["channels", "composed", "convolving", "losses", "making", "multiplying", "normalising", "pointwise", "pooling", "reducing"]
