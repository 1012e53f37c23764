"""Operators that have OpenCL kernels, grouped by kind."""

from __future__ import annotations

from cputrain.opencl.ops import (
    activations,
    argmax,
    channels,
    composed,
    convolving,
    embedding,
    factories,
    losses,
    multiplying,
    normalising,
    optimizing,
    pointwise,
    pooling,
    reducing,
    rng,
)

__all__ = [
    "activations",
    "argmax",
    "channels",
    "composed",
    "convolving",
    "embedding",
    "factories",
    "losses",
    "multiplying",
    "normalising",
    "optimizing",
    "pointwise",
    "pooling",
    "reducing",
    "rng",
]
