"""Maximum, minimum, argmax and argmin along a dimension."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.types import MAX_INT_INDEX, are_supported, element_definitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

ITEMS = 64
"""Work items per row."""


@kernel(aten.max.dim)
def max_dim(self: OclTensor, dim: int, keepdim: bool = False) -> Any:
    """Return maxima along a dimension and their indices."""
    return _extremum(self, dim, keepdim, is_min=False)


@kernel(aten.min.dim)
def min_dim(self: OclTensor, dim: int, keepdim: bool = False) -> Any:
    """Return minima along a dimension and their indices."""
    return _extremum(self, dim, keepdim, is_min=True)


@kernel(aten.argmax.default)
def argmax(self: OclTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the indices of the maxima along a dimension, or of the maximum of all elements."""
    return _index_of_extremum(self, dim, keepdim, is_min=False)


@kernel(aten.argmin.default)
def argmin(self: OclTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the indices of the minima along a dimension, or of the minimum of all elements."""
    return _index_of_extremum(self, dim, keepdim, is_min=True)


def _index_of_extremum(self: OclTensor, dim: int | None, keepdim: bool, *, is_min: bool) -> Any:
    tensor: Any = self
    if dim is None:
        if keepdim:
            return NotImplemented
        tensor, dim = self.reshape(-1), 0
    result = _extremum(tensor, dim, keepdim, is_min=is_min)
    return result if result is NotImplemented else result[1]


def _extremum(self: OclTensor, dim: int, keepdim: bool, *, is_min: bool) -> Any:
    device = self.memory.device
    if (
        not are_supported(device, self.dtype)
        or self.dtype is torch.bool
        or not self.numel()
        or not self.dim()
        or not -self.dim() <= dim < self.dim()
        or self.size(dim) > MAX_INT_INDEX
    ):
        return NotImplemented
    tensor = as_contiguous(self.transpose(dim, -1))
    size = [*tensor.size()[:-1], 1]
    values = empty(device.index, size, contiguous(size), self.dtype)
    indices = empty(device.index, size, contiguous(size), torch.int64)
    extremum_kernel = _kernel_for(device, self.dtype, is_min)
    device.launch(
        extremum_kernel, (values.numel() * ITEMS,), (ITEMS,), tensor.size(-1),
        tensor.memory.buffer, tensor.storage_offset(), values.memory.buffer, indices.memory.buffer,
    )  # fmt: skip
    results = [as_contiguous(result.transpose(dim, -1)) for result in (values, indices)]
    return tuple(result if keepdim else result.squeeze(dim) for result in results)


@lru_cache
def _kernel_for(device: Device, dtype: torch.dtype, is_min: bool) -> Any:
    definitions = {**element_definitions(dtype), "ITEMS": ITEMS, "IS_MIN": int(is_min)}
    types = (np.int32, None, np.int64, None, None)
    return compile_kernel(device, program_source("argmax", definitions), "extremum", types)
