"""Sequences: numbers in equal steps, and sums of all elements so far."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty, resize_in_place
from cputrain.opencl.types import (
    NAMES,
    SCALARS,
    access_definitions,
    are_supported,
    can_represent_range,
    element_definitions,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten


@kernel(aten.arange.start_out)
def arange(start: Any, end: Any, step: Any = 1, *, out: Any) -> Any:
    """Fill with numbers in equal steps, if all of them are integers that the dtype represents."""
    if not isinstance(out, OclTensor) or not are_supported(out.memory.device, out.dtype):
        return NotImplemented
    numbers = (start, end, step)
    if not all(type(number) is int for number in numbers) or (end - start) * step <= 0:
        return NotImplemented
    if not can_represent_range(out.dtype, min(numbers), max(numbers)):
        return NotImplemented
    count = -((start - end) // step)
    if out.numel() != count:
        resize_in_place(out, [count], [1])
    if not out.is_contiguous():
        return NotImplemented
    device, scalar = out.memory.device, SCALARS[out.dtype]
    device.launch(
        _kernel_for(device, "arange", out.dtype, out.dtype), *launch_size(count), count,
        scalar(start), scalar(step), out.memory.buffer, out.storage_offset(),
    )  # fmt: skip
    return out


@kernel(aten.cumsum.default)
def cumsum(self: OclTensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """Return the sums of all elements so far along a dimension."""
    result_dtype = dtype or (self.dtype if self.is_floating_point() else torch.int64)
    device = self.memory.device
    if not are_supported(device, self.dtype, result_dtype) or result_dtype is torch.bool:
        return NotImplemented
    if not self.dim() or not -self.dim() <= dim < self.dim():
        return NotImplemented
    size = list(self.size())
    dim %= self.dim()
    out = empty(device.index, size, contiguous(size), result_dtype)
    if out.numel():
        source = as_contiguous(self)
        count = out.numel() // size[dim]
        device.launch(
            _kernel_for(device, "cumsum", self.dtype, result_dtype), *launch_size(count), count,
            size[dim], prod(size[dim + 1 :]), source.memory.buffer, source.storage_offset(),
            out.memory.buffer,
        )  # fmt: skip
    return out


@lru_cache
def _kernel_for(device: Device, name: str, dtype: torch.dtype, sum_dtype: torch.dtype) -> Any:
    scalar, long_type = SCALARS[dtype], np.int64
    types = {
        "arange": (long_type, scalar, scalar, None, long_type),
        "cumsum": (long_type, long_type, long_type, None, long_type, None),
    }[name]
    source = program_source(
        "sequence",
        {
            **element_definitions(dtype),
            "SUM": NAMES[sum_dtype],
            **access_definitions(sum_dtype, "RESULT"),
        },
    )
    return compile_kernel(device, source, name, types)
