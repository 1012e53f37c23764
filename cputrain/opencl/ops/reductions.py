"""Reductions: sum, mean, max, min, any, all and norms."""

from __future__ import annotations

from typing import Any

import torch

from cputrain.opencl.ops.factories import copy_
from cputrain.opencl.reduction import reduce
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, empty
from cputrain.opencl.types import are_supported

aten = torch.ops.aten

SUM = ("0", "A + X", "A")
MEAN = ("0", "A + X", "A / COUNT")
"""Arguments of `reduce`: initial value, step and result."""


def _dims(self: OclTensor, dim: Any) -> list[int] | None:
    """Return the dimensions to reduce, by default all; None if torch raises for them."""
    num_dims = self.dim()
    requested = [dim] if isinstance(dim, int) else list(dim or range(num_dims))
    if any(not -max(1, num_dims) <= dim_index < max(1, num_dims) for dim_index in requested):
        return None
    dims = [dim_index % num_dims for dim_index in requested] if num_dims else []
    return None if len(set(dims)) < len(dims) else dims


def _reduce(
    expressions: tuple[str, ...],
    self: OclTensor,
    dim: Any,
    keepdim: bool,
    dtype: torch.dtype,
) -> Any:
    dims = _dims(self, dim)
    if dims is None or not are_supported(self.memory.device, self.dtype, dtype):
        return NotImplemented
    kept_size = [n for axis, n in enumerate(self.size()) if axis not in dims]
    index = self.memory.device.index
    out = empty(index, kept_size, contiguous(kept_size), dtype)
    if self.dtype is not dtype and self.dtype is torch.bool:
        self = copy_(empty(index, self.size(), contiguous(self.size()), dtype), self)
    reduce(expressions[0], expressions[1], expressions[2], self, dims, out, *expressions[3:])
    if not keepdim:
        return out
    size = [1 if axis in dims else n for axis, n in enumerate(self.size())]
    return OclTensor(out.memory, size, contiguous(size), 0, dtype)


@kernel(aten.sum.dim_IntList, aten.sum.default)
def sum_(
    self: OclTensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Sum over dimensions; sums of integers are int64."""
    dtype = dtype or (self.dtype if self.dtype.is_floating_point else torch.int64)
    if dtype is torch.bool:
        return NotImplemented
    return _reduce(SUM, self, dim, keepdim, dtype)


@kernel(aten.mean.dim, aten.mean.default)
def mean(
    self: OclTensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Average floating-point elements over dimensions."""
    dtype = dtype or self.dtype
    return _reduce(MEAN, self, dim, keepdim, dtype) if dtype.is_floating_point else NotImplemented


@kernel(aten.amax.default)
def amax(self: OclTensor, dim: Any = (), keepdim: bool = False) -> Any:
    """Return maxima over dimensions, and NaN where any element is NaN."""
    return _extremum("X > A || X != X ? X : A", "-INFINITY", self, dim, keepdim)


@kernel(aten.amin.default)
def amin(self: OclTensor, dim: Any = (), keepdim: bool = False) -> Any:
    """Return minima over dimensions, and NaN where any element is NaN."""
    return _extremum("X < A || X != X ? X : A", "INFINITY", self, dim, keepdim)


def _extremum(step: str, start: str, self: OclTensor, dim: Any, keepdim: bool) -> Any:
    if not self.dtype.is_floating_point or not self.numel():
        return NotImplemented
    return _reduce((start, f"A != A ? A : ({step})", "A"), self, dim, keepdim, self.dtype)


@kernel(aten.max.default)
def max_(self: OclTensor) -> Any:
    """Return the maximum of all elements."""
    return amax(self)


@kernel(aten.min.default)
def min_(self: OclTensor) -> Any:
    """Return the minimum of all elements."""
    return amin(self)


@kernel(aten.any.default, aten.any.dim, aten.any.dims)
def any_(self: OclTensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return whether any element is nonzero."""
    return _any_or_all("0", "A || X", self, dim, keepdim)


@kernel(aten.all.default, aten.all.dim, aten.all.dims)
def all_(self: OclTensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return whether all elements are nonzero."""
    return _any_or_all("1", "A && X", self, dim, keepdim)


def _any_or_all(start: str, step: str, self: OclTensor, dim: Any, keepdim: bool) -> Any:
    if self.dtype is torch.uint8 or (dim is not None and not isinstance(dim, int) and not dim):
        return NotImplemented
    tensor: Any = self if self.dtype is torch.bool else self != 0
    return _reduce((start, step, "A"), tensor, dim, keepdim, torch.bool)


NORMS = {
    1: ("0", "A + fabs(X)", "A"),
    2: ("0", "A + X * X", "sqrt(A)", "A + X"),
    float("inf"): ("0", "A != A ? A : fabs(X) > A || X != X ? fabs(X) : A", "A"),
}
"""Arguments of `reduce` by the order of a norm: initial value, step, result, merge if needed."""


@kernel(aten.linalg_vector_norm.default)
def vector_norm(
    self: OclTensor,
    ord: Any = 2,  # noqa: A002  (torch's name)
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Compute the vector norm of order 1, 2 or infinity."""
    expressions = NORMS.get(ord)
    if (
        expressions is None
        or dtype is not None
        or not self.dtype.is_floating_point
        or not self.numel()
    ):
        return NotImplemented
    return _reduce(expressions, self, dim, keepdim, self.dtype)
