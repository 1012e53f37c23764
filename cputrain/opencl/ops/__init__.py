"""Operators that have OpenCL kernels, grouped by kind."""

from __future__ import annotations

from cputrain.opencl.ops import activations as bending
from cputrain.opencl.ops import argmax as finding
from cputrain.opencl.ops import (
    channels,
    composed,
    convolving,
    losses,
    multiplying,
    normalising,
    optimizing,
    pointwise,
    pooling,
    reducing,
)
from cputrain.opencl.ops import embedding as picking
from cputrain.opencl.ops import factories as making
from cputrain.opencl.ops import rng as drawing

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
