"""Winograd convolutions: 3 x 3 kernels with a fourth of the multiplications; see winograd.cl.

The transformed tiles take more than twice the memory of the images, which are processed in chunks
therefore.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.ops.matmul import multiply
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.reduction import reduce
from cputrain.opencl.tensor import OclTensor, empty
from cputrain.opencl.types import MAX_INT_INDEX, computes_in, element_definitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.conv_geometry import ConvGeometry
    from cputrain.opencl.device import Device

TILE_ELEMENTS = 36
"""Number of elements of a 6 x 6 tile."""

MIN_CHANNELS = 16
"""Minimum number of channels: with fewer, the transforms cost more than they save."""

MEMORY_DIVISOR = 16
"""Divisor of the device's memory: transformed tiles may take a sixteenth of it."""


@lru_cache(maxsize=1 << 12)
def is_supported(g: ConvGeometry, dtype: torch.dtype) -> bool:
    """Return whether a convolution and its gradients are computed by Winograd's algorithm.

    It is not used in float64, where its larger rounding errors would defeat the purpose. In float16
    and bfloat16 its tiles are float32; that is faster than tensor cores with all multiplications.
    """
    return (
        computes_in(dtype) is torch.float32
        and (g.r, g.s) == (3, 3)
        and (g.stride_h, g.stride_w, g.dilation_h, g.dilation_w, g.groups) == (1, 1, 1, 1, 1)
        and min(g.c, g.k) >= MIN_CHANNELS
        and max(g.pad_h, g.pad_w) <= 2
        and min(g.p, g.q) > 2
        and TILE_ELEMENTS * max(g.c * g.k, max(g.c, g.k) * _num_tiles(g.p, g.q)) <= MAX_INT_INDEX
    )


def write_output(
    g: ConvGeometry, images: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the convolution of `images` to `out`."""
    weights = _transform_weight(weight, is_rotated=False)
    for first, num_images in _chunks(g, out.memory.device):
        transformed = _transform_input(
            images, first, num_images, (g.c, g.h, g.w), (g.p, g.q), (g.pad_h, g.pad_w)
        )
        _multiply_and_transform(weights, transformed, bias, out, first, num_images, (g.k, g.p, g.q))


def write_input_gradient(
    g: ConvGeometry, grad: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the gradient of the input: a convolution of the gradient by the rotated weight."""
    weights = _transform_weight(weight, is_rotated=True)
    for first, num_images in _chunks(g, out.memory.device):
        transformed = _transform_input(
            grad, first, num_images, (g.k, g.p, g.q), (g.h, g.w), (2 - g.pad_h, 2 - g.pad_w)
        )
        _multiply_and_transform(weights, transformed, bias, out, first, num_images, (g.c, g.h, g.w))


def write_weight_gradient(
    g: ConvGeometry, grad: OclTensor, images: OclTensor, out: OclTensor
) -> None:
    """Write the gradient of the weight to `out`."""
    device, dtype = out.memory.device, computes_in(out.dtype)
    chunks = _chunks(g, device)
    num_elements = TILE_ELEMENTS * g.k * g.c
    partial_sums = empty(
        device.index,
        (len(chunks), TILE_ELEMENTS, g.k, g.c),
        (num_elements, g.k * g.c, g.c, 1),
        dtype,
    )
    for index, (first, num_images) in enumerate(chunks):
        input_tiles = _transform_input(
            images, first, num_images, (g.c, g.h, g.w), (g.p, g.q), (g.pad_h, g.pad_w)
        )
        grad_tiles = _transform_gradient(g, grad, first, num_images)
        chunk_sum = OclTensor(
            partial_sums.memory,
            (TILE_ELEMENTS, g.k, g.c),
            (g.k * g.c, g.c, 1),
            index * num_elements,
            dtype,
        )
        transposed = OclTensor(
            input_tiles.memory, (TILE_ELEMENTS, input_tiles.size(2), g.c),
            (input_tiles.stride(0), 1, input_tiles.stride(1)), 0, dtype,
        )  # fmt: skip
        multiply(grad_tiles, transposed, chunk_sum)
    if len(chunks) > 1:
        total = empty(device.index, (TILE_ELEMENTS, g.k, g.c), (g.k * g.c, g.c, 1), dtype)
        reduce("0", "A + X", "A", partial_sums, [0], total)
        partial_sums = total
    ocl_kernel = _kernel_for(device, "transform_weight_gradient", out.dtype)
    device.launch(
        ocl_kernel, *launch_size(g.k * g.c), g.k, g.c, partial_sums.memory.buffer,
        out.memory.buffer, out.storage_offset(),
    )  # fmt: skip


def _num_tiles(p: int, q: int) -> int:
    """Return the number of 4 x 4 tiles that cover an output of p x q."""
    return -(-p // 4) * -(-q // 4)


@lru_cache(maxsize=1 << 12)
def _chunks(g: ConvGeometry, device: Device) -> list[tuple[int, int]]:
    """Return (first image, number of images) of each chunk processed at a time."""
    num_tiles = max(_num_tiles(g.p, g.q), _num_tiles(g.h, g.w))
    image_bytes = TILE_ELEMENTS * num_tiles * (g.c + g.k) * 4
    max_bytes = min(device.memory_bytes // MEMORY_DIVISOR, 2 << 30)
    max_images = max(
        1,
        min(max_bytes // image_bytes, MAX_INT_INDEX // (TILE_ELEMENTS * num_tiles * max(g.c, g.k))),
    )
    num_chunks = -(-g.n // max_images)
    num_images = -(-g.n // num_chunks)
    return [(first, min(num_images, g.n - first)) for first in range(0, g.n, num_images)]


def _empty_transformed(device: Device, planes: int, num_tiles: int) -> OclTensor:
    """Return an uninitialized tensor for transformed tiles: [36][planes][tiles]."""
    size, stride = (TILE_ELEMENTS, planes, num_tiles), (planes * num_tiles, num_tiles, 1)
    return empty(device.index, size, stride, torch.float32)


def _transform_weight(weight: OclTensor, *, is_rotated: bool) -> OclTensor:
    device = weight.memory.device
    k, c = weight.size(0), weight.size(1)
    rows, columns = (c, k) if is_rotated else (k, c)
    out = _empty_transformed(device, rows, columns)
    ocl_kernel = _kernel_for(device, "transform_weight", weight.dtype, ROTATED=is_rotated)
    device.launch(
        ocl_kernel, *launch_size(k * c), k, c, weight.memory.buffer, weight.storage_offset(),
        out.memory.buffer,
    )  # fmt: skip
    return out


def _transform_input(
    images: OclTensor, first: int, num_images: int, image: tuple[int, int, int],
    output_size: tuple[int, int], pad: tuple[int, int],
) -> OclTensor:  # fmt: skip
    device = images.memory.device
    planes, h, w = image
    tile_arguments = _tile_arguments(output_size, planes, num_images)
    out = _empty_transformed(device, planes, tile_arguments[-1])
    ocl_kernel = _kernel_for(device, "transform_input", images.dtype)
    device.launch(
        ocl_kernel, *launch_size(tile_arguments[0]), *tile_arguments, h, w, *pad,
        images.memory.buffer, images.storage_offset() + first * planes * h * w, out.memory.buffer,
    )  # fmt: skip
    return out


def _transform_gradient(g: ConvGeometry, grad: OclTensor, first: int, num_images: int) -> OclTensor:
    device = grad.memory.device
    tile_arguments = _tile_arguments((g.p, g.q), g.k, num_images)
    out = _empty_transformed(device, g.k, tile_arguments[-1])
    ocl_kernel = _kernel_for(device, "transform_gradient", grad.dtype)
    device.launch(
        ocl_kernel, *launch_size(tile_arguments[0]), *tile_arguments, grad.memory.buffer,
        grad.storage_offset() + first * g.k * g.p * g.q, out.memory.buffer,
    )  # fmt: skip
    return out


def _multiply_and_transform(
    weights: OclTensor, transformed: OclTensor, bias: OclTensor | None, out: OclTensor, first: int,
    num_images: int, image: tuple[int, int, int],
) -> None:  # fmt: skip
    device = out.memory.device
    planes, p, q = image
    tile_arguments = _tile_arguments((p, q), planes, num_images)
    products = _empty_transformed(device, planes, tile_arguments[-1])
    multiply(weights, transformed, products)
    ocl_kernel = _kernel_for(device, "transform_output", out.dtype, HAS_BIAS=bias is not None)
    bias_or_out = out if bias is None else bias  # (the kernel needs a buffer)
    device.launch(
        ocl_kernel, *launch_size(tile_arguments[0]), *tile_arguments, products.memory.buffer,
        bias_or_out.memory.buffer, bias_or_out.storage_offset(),
        out.memory.buffer, out.storage_offset() + first * planes * p * q,
    )  # fmt: skip


def _tile_arguments(output_size: tuple[int, int], planes: int, num_images: int) -> tuple[int, ...]:
    """Return the tile arguments of the kernels: total tiles first, tiles of a plane last."""
    p, q = output_size
    num_tiles = num_images * _num_tiles(p, q)
    return planes * num_tiles, planes, p, q, -(-p // 4), -(-q // 4), num_tiles


@lru_cache
def _kernel_for(device: Device, name: str, dtype: torch.dtype, **flags_by_name: bool) -> Any:
    int_type = np.int32
    types = {
        "transform_input": (*[int_type] * 11, None, int_type, None),
        "transform_gradient": (*[int_type] * 7, None, int_type, None),
        "transform_output": (*[int_type] * 7, None, None, int_type, None, int_type),
        "transform_weight": (int_type, int_type, None, int_type, None),
        "transform_weight_gradient": (int_type, int_type, None, None, int_type),
    }[name]
    flags = {
        "HAS_BIAS": 0,
        "ROTATED": 0,
        **{key: int(value) for key, value in flags_by_name.items()},
    }
    return compile_kernel(
        device, program_source("winograd", {**element_definitions(dtype), **flags}), name, types
    )
