"""Convolutions of one and two dimensions, transposed or not, and their gradients.

Each is a tiled matrix product that reads the images in place (implicit GEMM, without im2col). A
table of the summed elements, built once per geometry, holds their offsets. The input gradient of a
strided convolution is a separate product for each position within the stride, so that no product
with zeros is computed. Depthwise convolutions have kernels that are not matrix products.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product as cartesian_product
from math import prod
from typing import Any

import numpy as np
import torch

from cputrain.opencl.conv_geometry import ConvGeometry, conv_geometry_of
from cputrain.opencl.device import devices
from cputrain.opencl.fallback import prefers_cpu
from cputrain.opencl.ops import winograd
from cputrain.opencl.ops.depthwise import depthwise, depthwise_input, depthwise_weight
from cputrain.opencl.product import Product, TensorSlot
from cputrain.opencl.reduction import reduce
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.tiles import result_definitions, split_k
from cputrain.opencl.types import MAX_INT_INDEX, are_supported, computes_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten


@kernel(aten.convolution.default)
def convolution(
    input: OclTensor,  # noqa: A002  (torch's name)
    weight: OclTensor,
    bias: OclTensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """Convolve images, or 1-d inputs as images with a single row."""
    if not _is_supported(input, weight, bias):
        return NotImplemented
    if input.dim() == 3:
        result = convolution(
            input.unsqueeze(2), weight.unsqueeze(2), bias,
            *_with_unit_row(stride, padding, dilation), transposed, [0, *output_padding], groups,
        )  # fmt: skip
        return result if result is NotImplemented else result.squeeze(2)
    geometry = conv_geometry_of(
        input.size(), weight.size(), tuple(stride), tuple(padding), tuple(dilation), groups,
        tuple(output_padding) if transposed else None,
    )  # fmt: skip
    if geometry is None or (
        bias is not None and tuple(bias.size()) != (geometry.c if transposed else geometry.k,)
    ):
        return NotImplemented  # torch raises its own error
    size = geometry.input_size if transposed else geometry.output_size
    if prod(size) > MAX_INT_INDEX:
        return NotImplemented
    out = empty(input.memory.device.index, size, contiguous(size), input.dtype)
    if out.numel():
        images, dense_weight = as_contiguous(input), as_contiguous(weight)
        dense_bias = None if bias is None else as_contiguous(bias)
        write = _write_input_gradient if transposed else _write_output
        write(geometry, images, dense_weight, dense_bias, out)
    return out


@kernel(aten.convolution_backward.default)
def convolution_backward(
    grad_output: OclTensor,
    input: OclTensor,  # noqa: A002
    weight: OclTensor,
    bias_sizes: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """Return the gradients of the input, the weight and the bias."""
    if not _is_supported(grad_output, input, weight):
        return NotImplemented
    if input.dim() == 3:
        gradients = convolution_backward(
            grad_output.unsqueeze(2), input.unsqueeze(2), weight.unsqueeze(2), bias_sizes,
            *_with_unit_row(stride, padding, dilation), transposed, [0, *output_padding], groups,
            output_mask,
        )  # fmt: skip
        if gradients is NotImplemented:
            return gradients
        return (
            *(grad if grad is None else grad.squeeze(2) for grad in gradients[:2]),
            gradients[2],
        )
    geometry = conv_geometry_of(
        input.size(), weight.size(), tuple(stride), tuple(padding), tuple(dilation), groups,
        tuple(output_padding) if transposed else None,
    )  # fmt: skip
    if geometry is None or not input.numel() or not grad_output.numel():
        return NotImplemented
    dense_grad, images, dense_weight = map(as_contiguous, (grad_output, input, weight))
    index = input.memory.device.index
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = empty(index, input.size(), images.stride(), input.dtype)
        write = _write_output if transposed else _write_input_gradient
        write(geometry, dense_grad, dense_weight, None, grad_input)
    if output_mask[1]:
        grad_weight = empty(index, weight.size(), dense_weight.stride(), weight.dtype)
        tensors = (images, dense_grad) if transposed else (dense_grad, images)
        _write_weight_gradient(geometry, *tensors, grad_weight)
    if output_mask[2]:
        grad_bias = grad_output.sum((0, 2, 3))
    return grad_input, grad_weight, grad_bias


def _is_supported(*tensors: OclTensor | None) -> bool:
    present = [tensor for tensor in tensors if tensor is not None]
    first = present[0]
    if not all(isinstance(tensor, OclTensor) for tensor in present):
        return False
    device = first.memory.device
    return (
        not prefers_cpu(device)
        and first.dtype.is_floating_point
        and are_supported(device, first.dtype)
        and all(
            tensor.dtype is first.dtype and tensor.memory.device is device for tensor in present
        )
        and first.dim() in (3, 4)
        and all(tensor.storage_offset() + tensor.numel() <= MAX_INT_INDEX for tensor in present)
    )


def _with_unit_row(*parameters: Sequence[int]) -> list[list[int]]:
    """Extend stride, padding and dilation of a 1-d convolution to an image with a single row."""
    return [[neutral, *(list(value) * (3 - len(value)))[:1]]
            for neutral, value in zip((1, 0, 1), parameters, strict=True)]  # fmt: skip


def _write_output(
    geometry: ConvGeometry,
    images: OclTensor,
    weight: OclTensor,
    bias: OclTensor | None,
    out: OclTensor,
) -> None:
    if geometry.is_depthwise:
        depthwise(geometry, images, weight, bias, out)
        return
    if winograd.is_supported(geometry, out.dtype):
        winograd.write_output(geometry, images, weight, bias, out)
        return
    bias_or_weight = weight if bias is None else bias  # (the kernel needs a buffer)
    product = _output_product(out.memory.device, geometry, out.dtype, bias is not None)
    product.launch((weight, images, bias_or_weight, out))


@lru_cache(maxsize=1 << 12)
def _output_product(device: Device, g: ConvGeometry, dtype: torch.dtype, has_bias: bool) -> Product:
    return _conv_product(
        device, g, dtype, has_bias,
        rows=g.group_out_channels, depth=g.reduction_size, table=_output_table(device.index, g),
        weight_strides=(g.reduction_size, g.group_out_channels * g.reduction_size),
        input_layout=(g.c * g.h * g.w, g.group_in_channels * g.h * g.w, g.h, g.w),
        grid=(g.p, g.q, g.stride_h, g.stride_w, -g.pad_h, -g.pad_w),
        output_layout=(0, g.k * g.p * g.q, g.p * g.q, g.group_out_channels * g.p * g.q, g.q, 1),
        is_checked=g.is_padded,
    )  # fmt: skip


def _write_input_gradient(
    geometry: ConvGeometry,
    grad: OclTensor,
    weight: OclTensor,
    bias: OclTensor | None,
    out: OclTensor,
) -> None:
    if geometry.is_depthwise:
        depthwise_input(geometry, grad, weight, bias, out)
        return
    if winograd.is_supported(geometry, out.dtype):
        winograd.write_input_gradient(geometry, grad, weight, bias, out)
        return
    bias_or_weight = weight if bias is None else bias  # (the kernel needs a buffer)
    for product in _input_products(out.memory.device, geometry, out.dtype, bias is not None):
        product.launch((weight, grad, bias_or_weight, out))


@lru_cache(maxsize=1 << 12)
def _input_products(
    device: Device, g: ConvGeometry, dtype: torch.dtype, has_bias: bool
) -> list[Product]:
    products = []
    for a, b in cartesian_product(range(min(g.stride_h, g.h)), range(min(g.stride_w, g.w))):
        table, depth = _input_table(device.index, g, a, b)
        products.append(_conv_product(
            device, g, dtype, has_bias,
            rows=g.group_in_channels, depth=depth, table=table,
            weight_strides=(g.r * g.s, g.group_out_channels * g.reduction_size),
            input_layout=(g.k * g.p * g.q, g.group_out_channels * g.p * g.q, g.p, g.q),
            grid=(-(-(g.h - a) // g.stride_h), -(-(g.w - b) // g.stride_w), 1, 1, 0, 0),
            output_layout=(
                a * g.w + b, g.c * g.h * g.w, g.h * g.w, g.group_in_channels * g.h * g.w,
                g.stride_h * g.w, g.stride_w,
            ),
            is_checked=True,
        ))  # fmt: skip
    return products


def _conv_product(
    device: Device, g: ConvGeometry, dtype: torch.dtype, has_bias: bool, *,
    rows: int, depth: int, table: Any, weight_strides: tuple[int, int],
    input_layout: tuple[int, ...], grid: tuple[int, ...], output_layout: tuple[int, ...],
    is_checked: bool,
) -> Product:  # fmt: skip
    """Return the product of conv.cl with these arguments.

    Args:
        device: Device to run on.
        g: Geometry of the convolution.
        dtype: Dtype of the elements.
        has_bias: Whether a bias is added.
        rows: Channels of a group that are written.
        depth: Number of entries of `table`.
        table: Buffer of the summed elements; see conv.cl.
        weight_strides: Strides of the written channel and of the group in the weight.
        input_layout: Strides of the image and of the group in the input, its height and width.
        grid: Height and width of the written positions, and the stride and the start of the input
            positions that they map to.
        output_layout: Offset in the output, and its strides: image, channel, group, row, column.
        is_checked: Whether input positions may be outside of the image.
    """
    columns = g.n * grid[0] * grid[1]
    return Product(
        device, ("image", "conv"), dtype,
        (("CHECKED", int(is_checked)), ("HAS_BIAS", int(has_bias))),
        CONV_TYPES, (rows, columns, depth, g.groups),
        [
            rows, columns, depth, TensorSlot(0), *weight_strides, TensorSlot(1),
            *input_layout, input_layout[3], 1, *grid, table, TensorSlot(2),
            TensorSlot(3, output_layout[0]), *output_layout[1:],
        ],
    )  # fmt: skip


def _write_weight_gradient(
    geometry: ConvGeometry, grad: OclTensor, images: OclTensor, out: OclTensor
) -> None:
    if geometry.is_depthwise:
        depthwise_weight(geometry, grad, images, out)
        return
    if winograd.is_supported(geometry, out.dtype):
        winograd.write_weight_gradient(geometry, grad, images, out)
        return
    device, dtype = out.memory.device, out.dtype
    product, num_parts = _weight_product(device, geometry, dtype)
    partial_sums = out
    if num_parts > 1:
        size, stride = (num_parts, out.numel()), (out.numel(), 1)
        partial_sums = empty(device.index, size, stride, computes_in(dtype))
    product.launch((grad, images, partial_sums))
    if num_parts > 1:
        reduce("0", "A + X", "A", partial_sums, [0], out)


@lru_cache(maxsize=1 << 12)
def _weight_product(device: Device, g: ConvGeometry, dtype: torch.dtype) -> tuple[Product, int]:
    rows, columns, depth = g.group_out_channels, g.reduction_size, g.n * g.p * g.q
    num_parts, part_length = split_k(device, rows, columns, depth, g.groups)
    product = Product(
        device, ("image", "conv_weight"), dtype,
        (("CHECKED", int(g.is_padded)), *result_definitions(dtype, num_parts)),
        CONV_WEIGHT_TYPES,
        (rows, columns, depth, g.groups * num_parts),
        [
            rows, columns, depth, TensorSlot(0), g.k * g.p * g.q, g.p * g.q,
            g.group_out_channels * g.p * g.q, g.q, 1, TensorSlot(1), g.c * g.h * g.w,
            g.group_in_channels * g.h * g.w, g.h, g.w, g.w, 1,
            g.p, g.q, g.stride_h, g.stride_w, -g.pad_h, -g.pad_w,
            _output_table(device.index, g), num_parts, part_length,
            TensorSlot(2, omits_offset=True),
        ],
    )  # fmt: skip
    return product, num_parts


@lru_cache(maxsize=1 << 10)
def _output_table(index: int, g: ConvGeometry) -> Any:
    """Return the table of a convolution: an entry per input channel and kernel position."""
    c, r, s = np.meshgrid(
        np.arange(g.group_in_channels), np.arange(g.r), np.arange(g.s), indexing="ij"
    )
    h, w = r * g.dilation_h, s * g.dilation_w
    rows = (c * g.r * g.s + r * g.s + s, c * g.h * g.w + h * g.w + w, h, w)
    return _upload_table(index, rows)


@lru_cache(maxsize=1 << 10)
def _input_table(index: int, g: ConvGeometry, a: int, b: int) -> tuple[Any, int]:
    """Return the table of the input gradient at offset (a, b) within the stride, and its length.

    An entry is an output channel and a kernel position that reaches these input positions.
    """
    rows = [r for r in range(g.r) if (a + g.pad_h - r * g.dilation_h) % g.stride_h == 0]
    columns = [s for s in range(g.s) if (b + g.pad_w - s * g.dilation_w) % g.stride_w == 0]
    k, r, s = np.meshgrid(
        np.arange(g.group_out_channels),
        np.array(rows, np.int64),
        np.array(columns, np.int64),
        indexing="ij",
    )
    h = (a + g.pad_h - r * g.dilation_h) // g.stride_h
    w = (b + g.pad_w - s * g.dilation_w) // g.stride_w
    weight = k * g.group_in_channels * g.r * g.s + r * g.s + s
    return _upload_table(index, (weight, k * g.p * g.q + h * g.q + w, h, w)), k.size


def _upload_table(index: int, columns: Sequence[Any]) -> Any:
    """Return a constant buffer of int4 entries on device `index`; see conv.cl."""
    host = np.stack([column.ravel() for column in columns], 1).astype(np.int32)
    if not host.size:
        host = np.zeros((1, 4), np.int32)
    return devices()[index].constant(host)


CONV_TYPES = (
    *[np.int32] * 3, None, *[np.int32] * 3, None, *[np.int32] * 3, *[np.int32] * 4,
    *[np.int32] * 6, None, None, np.int32, None, *[np.int32] * 6,
)  # fmt: skip
"""Argument types of conv.cl."""

CONV_WEIGHT_TYPES = (
    *[np.int32] * 3, None, *[np.int32] * 6, None, *[np.int32] * 3, *[np.int32] * 4,
    *[np.int32] * 6, None, np.int32, np.int32, None,
)  # fmt: skip
"""Argument types of conv_weight.cl."""
