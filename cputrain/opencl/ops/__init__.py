"""Operators that have OpenCL kernels, grouped by kind."""

from __future__ import annotations

from cputrain.opencl.ops import (
    activations,
    argmax,
    batch_norm,
    composed,
    convolution,
    embedding,
    factories,
    losses,
    matmul,
    normalization,
    optimizers,
    pointwise,
    pooling,
    reductions,
    rng,
    sequences,
)

__all__ = [
    "activations",
    "argmax",
    "batch_norm",
    "composed",
    "convolution",
    "embedding",
    "factories",
    "losses",
    "matmul",
    "normalization",
    "optimizers",
    "pointwise",
    "pooling",
    "reductions",
    "rng",
    "sequences",
]
