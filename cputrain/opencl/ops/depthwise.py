"""Depthwise convolutions: too little data reuse for a tiled matrix product."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.reduction import reduce
from cputrain.opencl.tensor import OclTensor, empty
from cputrain.opencl.types import access_definitions, computes_in, element_definitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.conv_geometry import ConvGeometry
    from cputrain.opencl.device import Device

ITEMS = 128
"""Work items that sum a channel's part of the weight gradient."""

GROUPS_PER_UNIT = 8
"""Work-groups per compute unit that keep a device busy."""


def depthwise(
    geometry: ConvGeometry,
    images: OclTensor,
    weight: OclTensor,
    bias: OclTensor | None,
    out: OclTensor,
) -> None:
    """Write a depthwise convolution to `out`."""
    _launch_elementwise("output", geometry, images, weight, bias, out)


def depthwise_input(
    geometry: ConvGeometry,
    grad: OclTensor,
    weight: OclTensor,
    bias: OclTensor | None,
    out: OclTensor,
) -> None:
    """Write the gradient of the input of a depthwise convolution to `out`."""
    _launch_elementwise("input", geometry, grad, weight, bias, out)


def _launch_elementwise(
    name: str, geometry: ConvGeometry, images: OclTensor, weight: OclTensor, bias: OclTensor | None,
    out: OclTensor,
) -> None:  # fmt: skip
    device = out.memory.device
    ocl_kernel = _kernel_for(device, name, geometry, out.dtype, out.dtype, bias is not None)
    bias_or_weight = weight if bias is None else bias  # (the kernel needs a buffer)
    num_elements = out.numel()
    device.launch(
        ocl_kernel, *launch_size(num_elements), num_elements, *_shape_arguments(geometry),
        images.memory.buffer, images.storage_offset(),
        weight.memory.buffer, weight.storage_offset(),
        bias_or_weight.memory.buffer, bias_or_weight.storage_offset(),
        out.memory.buffer, out.storage_offset(),
    )  # fmt: skip


def depthwise_weight(
    geometry: ConvGeometry, grad: OclTensor, images: OclTensor, out: OclTensor
) -> None:
    """Write the gradient of the weight of a depthwise convolution to `out`."""
    device = out.memory.device
    positions = geometry.n * geometry.p * geometry.q
    num_parts = max(
        1, min(GROUPS_PER_UNIT * device.num_units // geometry.k, positions // (4 * ITEMS), 256)
    )
    partial_sums, dtype = out, out.dtype
    if num_parts > 1:
        dtype = computes_in(dtype)
        partial_sums = empty(device.index, (num_parts, out.numel()), (out.numel(), 1), dtype)
    ocl_kernel = _kernel_for(device, "weight", geometry, out.dtype, dtype, False)
    device.launch(
        ocl_kernel, (num_parts * ITEMS, geometry.k), (ITEMS, 1), num_parts, geometry.n,
        *_shape_arguments(geometry),
        grad.memory.buffer, grad.storage_offset(), images.memory.buffer, images.storage_offset(),
        partial_sums.memory.buffer,
    )  # fmt: skip
    if num_parts > 1:
        reduce("0", "A + X", "A", partial_sums, [0], out)


@lru_cache(maxsize=1 << 12)
def _shape_arguments(w: ConvGeometry) -> tuple[int, ...]:
    return w.c, w.h, w.w, w.k, w.p, w.q, w.group_out_channels, w.pad_h, w.pad_w


def _kernel_for(
    device: Device,
    name: str,
    w: ConvGeometry,
    dtype: torch.dtype,
    result: torch.dtype,
    has_bias: bool,
) -> Any:
    """Return the kernel for this kernel size, stride and dilation; image sizes are arguments."""
    return _build_kernel(
        device,
        name,
        dtype,
        result,
        w.r,
        w.s,
        w.stride_h,
        w.stride_w,
        w.dilation_h,
        w.dilation_w,
        int(has_bias),
    )


@lru_cache
def _build_kernel(
    device: Device, name: str, dtype: torch.dtype, result: torch.dtype, *values: int
) -> Any:
    names = ("R", "S", "STRIDE_H", "STRIDE_W", "DILATION_H", "DILATION_W", "HAS_BIAS")
    definitions = {
        **element_definitions(dtype), **access_definitions(result, "RESULT"),
        "ITEMS": ITEMS, **dict(zip(names, values, strict=True)),
    }  # fmt: skip
    types = WEIGHT_TYPES if name == "weight" else ELEMENTWISE_TYPES
    return compile_kernel(device, program_source("depthwise", definitions), name, types)


ELEMENTWISE_TYPES = (np.int32, *[np.int32] * 9, *(None, np.int32) * 4)
"""Argument types of the kernels `output` and `input`."""

WEIGHT_TYPES = (np.int32, np.int32, *[np.int32] * 9, None, np.int32, None, np.int32, None)
"""Argument types of the kernel `weight`."""
