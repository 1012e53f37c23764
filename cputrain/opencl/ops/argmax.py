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
from cputrain.opencl.types import MAX_INT_INDEX, NAMES, are_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

ITEMS = 64
"""Work-items per row."""


@kernel(aten.max.dim)
def most(self: OclTensor, dim: int, keepdim: bool = False) -> Any:
    """Return maxima along a dimension and their indices."""
    return _farthest(self, dim, keepdim, is_least=False)


@kernel(aten.min.dim)
def least(self: OclTensor, dim: int, keepdim: bool = False) -> Any:
    """Return minima along a dimension and their indices."""
    return _farthest(self, dim, keepdim, is_least=True)


@kernel(aten.argmax.default)
def place_of_most(self: OclTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the indices of the maxima."""
    return _place(self, dim, keepdim, is_least=False)


@kernel(aten.argmin.default)
def place_of_least(self: OclTensor, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the indices of the minima."""
    return _place(self, dim, keepdim, is_least=True)


def _place(self: OclTensor, dim: int | None, keepdim: bool, *, is_least: bool) -> Any:
    one: Any = self
    if dim is None:
        if keepdim:
            return NotImplemented
        one, dim = self.reshape(-1), 0
    found = _farthest(one, dim, keepdim, is_least=is_least)
    return found if found is NotImplemented else found[1]


def _farthest(self: OclTensor, dim: int, keepdim: bool, *, is_least: bool) -> Any:
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
    one = as_contiguous(self.transpose(dim, -1))
    size = [*one.size()[:-1], 1]
    values = empty(device.index, size, contiguous(size), self.dtype)
    places = empty(device.index, size, contiguous(size), torch.int64)
    ready = _kernel_for(device, self.dtype, is_least)
    device.launch(
        ready, (values.numel() * ITEMS,), (ITEMS,), one.size(-1),
        one.memory.buffer, one.storage_offset(), values.memory.buffer, places.memory.buffer,
    )  # fmt: skip
    both = [as_contiguous(each.transpose(dim, -1)) for each in (values, places)]
    return tuple(each if keepdim else each.squeeze(dim) for each in both)


@lru_cache
def _kernel_for(device: Device, kind: torch.dtype, is_least: bool) -> Any:
    defined = {"T": NAMES[kind], "ITEMS": ITEMS, "IS_LEAST": int(is_least)}
    types = (np.int32, None, np.int64, None, None)
    return compile_kernel(device, program_source("farthest", defined), "farthest", types)
