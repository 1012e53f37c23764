"""Operators that have kernels, a file for each kind of them."""

from __future__ import annotations

from cputrain.opencl.ops import composed, making, pointwise

__all__ = ["composed", "making", "pointwise"]
