"""Operators that have kernels, a file for each kind of them."""

from __future__ import annotations

from cputrain.opencl.ops import (
    bending,
    channels,
    composed,
    convolving,
    drawing,
    finding,
    losses,
    making,
    multiplying,
    normalising,
    optimizing,
    picking,
    pointwise,
    pooling,
    reducing,
)

__all__ = [
    "bending",
    "channels",
    "composed",
    "convolving",
    "drawing",
    "finding",
    "losses",
    "making",
    "multiplying",
    "normalising",
    "optimizing",
    "picking",
    "pointwise",
    "pooling",
    "reducing",
]
