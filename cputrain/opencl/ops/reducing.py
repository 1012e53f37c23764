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


def _dims(self: OclTensor, dim: Any) -> list[int] | None:
    """All of them, or those that are named; None where torch will say what is wrong."""
    count = self.dim()
    asked = [dim] if isinstance(dim, int) else list(dim or range(count))
    if any(not -max(1, count) <= one < max(1, count) for one in asked):
        return None
    found = [one % count for one in asked] if count else []
    return None if len(set(found)) < len(found) else found


def _reduced(
    how: tuple[str, ...],
    self: OclTensor,
    dim: Any,
    keepdim: bool,
    kind: torch.dtype,
) -> Any:
    dims = _dims(self, dim)
    if dims is None or not are_supported(self.memory.device, self.dtype, kind):
        return NotImplemented
    kept = [n for place, n in enumerate(self.size()) if place not in dims]
    index = self.memory.device.index
    out = empty(index, kept, contiguous(kept), kind)
    if self.dtype is not kind and self.dtype is torch.bool:
        self = copy_(empty(index, self.size(), contiguous(self.size()), kind), self)
    reduce(how[0], how[1], how[2], self, dims, out, *how[3:])
    if not keepdim:
        return out
    size = [1 if place in dims else n for place, n in enumerate(self.size())]
    return OclTensor(out.memory, size, contiguous(size), 0, kind)


@kernel(aten.sum.dim_IntList, aten.sum.default)
def sum_(
    self: OclTensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Of integers, an int64."""
    kind = dtype or (self.dtype if self.dtype.is_floating_point else torch.int64)
    if kind is torch.bool:
        return NotImplemented
    return _reduced(SUM, self, dim, keepdim, kind)


@kernel(aten.mean.dim, aten.mean.default)
def mean(
    self: OclTensor,
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Of floating numbers."""
    kind = dtype or self.dtype
    return _reduced(MEAN, self, dim, keepdim, kind) if kind.is_floating_point else NotImplemented


@kernel(aten.amax.default)
def amax(self: OclTensor, dim: Any = (), keepdim: bool = False) -> Any:
    """Return maxima; NaN compares greater than every number."""
    return _farthest("X > A || X != X ? X : A", "-INFINITY", self, dim, keepdim)


@kernel(aten.amin.default)
def amin(self: OclTensor, dim: Any = (), keepdim: bool = False) -> Any:
    """Return minima; NaN compares less than every number."""
    return _farthest("X < A || X != X ? X : A", "INFINITY", self, dim, keepdim)


def _farthest(step: str, start: str, self: OclTensor, dim: Any, keepdim: bool) -> Any:
    if not self.dtype.is_floating_point or not self.numel():
        return NotImplemented
    return _reduced((start, f"A != A ? A : ({step})", "A"), self, dim, keepdim, self.dtype)


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
    return _of_truth("0", "A || X", self, dim, keepdim)


@kernel(aten.all.default, aten.all.dim, aten.all.dims)
def all_(self: OclTensor, dim: Any = None, keepdim: bool = False) -> Any:
    """Return whether all elements are nonzero."""
    return _of_truth("1", "A && X", self, dim, keepdim)


def _of_truth(start: str, step: str, self: OclTensor, dim: Any, keepdim: bool) -> Any:
    if self.dtype is torch.uint8 or (dim is not None and not isinstance(dim, int) and not dim):
        return NotImplemented
    one: Any = self if self.dtype is torch.bool else self != 0
    return _reduced((start, step, "A"), one, dim, keepdim, torch.bool)


NORMS = {
    1: ("0", "A + fabs(X)", "A"),
    2: ("0", "A + X * X", "sqrt(A)", "A + X"),
    float("inf"): ("0", "A != A ? A : fabs(X) > A || X != X ? fabs(X) : A", "A"),
}


@kernel(aten.linalg_vector_norm.default)
def vector_norm(
    self: OclTensor,
    ord: Any = 2,  # noqa: A002  (torch's name)
    dim: Any = None,
    keepdim: bool = False,
    *,
    dtype: Any = None,
) -> Any:
    """Compute the vector norm."""
    how = NORMS.get(ord)
    if how is None or dtype is not None or not self.dtype.is_floating_point or not self.numel():
        return NotImplemented
    return _reduced(how, self, dim, keepdim, self.dtype)
