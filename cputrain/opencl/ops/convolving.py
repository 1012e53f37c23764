"""Convolutions of one and two dimensions, transposed or not, and their gradients.

All are products in tiles whose factors are read where they are: no image is unfolded in memory.
What is added up is told by a table for each geometry, made once. A gradient of the input with a
step of more than one is a product for each of the places within a step, so that nothing is computed
in vain and nothing is written twice. Channels on their own have kernels that are not products.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import product as pairs
from math import prod
from typing import Any

import numpy as np
import torch

from cputrain.opencl.conv_geometry import ConvGeometry, conv_geometry_of
from cputrain.opencl.device import devices
from cputrain.opencl.fallback import prefers_cpu
from cputrain.opencl.ops import winograd
from cputrain.opencl.ops.depthwise import depthwise, depthwise_input, depthwise_weight
from cputrain.opencl.product import At, Product
from cputrain.opencl.reduction import reduce
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.tiles import split_k
from cputrain.opencl.types import MAX_INT_INDEX, are_supported

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
    """Of images, or of rows as images with one row."""
    if not _is_ours(input, weight, bias):
        return NotImplemented
    if input.dim() == 3:
        found = convolution(
            input.unsqueeze(2), weight.unsqueeze(2), bias,
            *_flat(stride, padding, dilation), transposed, [0, *output_padding], groups,
        )  # fmt: skip
        return found if found is NotImplemented else found.squeeze(2)
    window = conv_geometry_of(
        input.size(), weight.size(), tuple(stride), tuple(padding), tuple(dilation), groups,
        tuple(output_padding) if transposed else None,
    )  # fmt: skip
    if window is None or (
        bias is not None and tuple(bias.size()) != (window.c if transposed else window.k,)
    ):
        return NotImplemented  # something is wrong, as torch will say
    size = window.input_size if transposed else window.output_size
    if prod(size) > MAX_INT_INDEX:
        return NotImplemented
    out = empty(input.memory.device.index, size, contiguous(size), input.dtype)
    if out.numel():
        one, other = as_contiguous(input), as_contiguous(weight)
        more = None if bias is None else as_contiguous(bias)
        (_to_input if transposed else _to_output)(window, one, other, more, out)
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
    """Gradients of the input, the weight and the bias."""
    if not _is_ours(grad_output, input, weight):
        return NotImplemented
    if input.dim() == 3:
        found = convolution_backward(
            grad_output.unsqueeze(2), input.unsqueeze(2), weight.unsqueeze(2), bias_sizes,
            *_flat(stride, padding, dilation), transposed, [0, *output_padding], groups,
            output_mask,
        )  # fmt: skip
        if found is NotImplemented:
            return found
        return (*(one if one is None else one.squeeze(2) for one in found[:2]), found[2])
    window = conv_geometry_of(
        input.size(), weight.size(), tuple(stride), tuple(padding), tuple(dilation), groups,
        tuple(output_padding) if transposed else None,
    )  # fmt: skip
    if window is None or not input.numel() or not grad_output.numel():
        return NotImplemented
    grad, one, other = as_contiguous(grad_output), as_contiguous(input), as_contiguous(weight)
    index = input.memory.device.index
    of_input = of_weight = of_bias = None
    if output_mask[0]:
        of_input = empty(index, input.size(), one.stride(), input.dtype)
        (_to_output if transposed else _to_input)(window, grad, other, None, of_input)
    if output_mask[1]:
        of_weight = empty(index, weight.size(), other.stride(), weight.dtype)
        _to_weight(window, *((one, grad) if transposed else (grad, one)), of_weight)
    if output_mask[2]:
        of_bias = grad_output.sum((0, 2, 3))
    return of_input, of_weight, of_bias


def _is_ours(*tensors: OclTensor | None) -> bool:
    there = [one for one in tensors if one is not None]
    first = there[0]
    if not all(isinstance(one, OclTensor) for one in there):
        return False
    device = first.memory.device
    return (
        not prefers_cpu(device)
        and first.dtype.is_floating_point
        and are_supported(device, first.dtype)
        and all(one.dtype is first.dtype and one.memory.device is device for one in there)
        and first.dim() in (3, 4)
        and all(one.storage_offset() + one.numel() <= MAX_INT_INDEX for one in there)
    )


def _flat(*each: Sequence[int]) -> list[list[int]]:
    """Of rows, as of images: steps, edges and gaps."""
    return [[neutral, *(list(one) * (3 - len(one)))[:1]]
            for neutral, one in zip((1, 0, 1), each, strict=True)]  # fmt: skip


def _to_output(
    window: ConvGeometry, one: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    if window.is_depthwise:
        depthwise(window, one, weight, bias, out)
        return
    if winograd.fits(window, out.dtype):
        winograd.to_output(window, one, weight, bias, out)
        return
    held = weight if bias is None else bias  # (something must be given)
    _output(out.memory.device, window, out.dtype, bias is not None).launch((weight, one, held, out))


@lru_cache(maxsize=1 << 12)
def _output(device: Device, w: ConvGeometry, kind: torch.dtype, has_bias: bool) -> Product:
    return _product(
        device, w, kind, has_bias,
        rows=w.group_out_channels, deep=w.reduction_size, table=_table_out(device.index, w),
        weight_steps=(w.reduction_size, w.group_out_channels * w.reduction_size),
        read=(w.c * w.h * w.w, w.group_in_channels * w.h * w.w, w.h, w.w),
        places=(w.p, w.q, w.stride_h, w.stride_w, -w.pad_h, -w.pad_w),
        written=(0, w.k * w.p * w.q, w.p * w.q, w.group_out_channels * w.p * w.q, w.q, 1),
        checked=w.is_padded,
    )  # fmt: skip


def _to_input(
    window: ConvGeometry, grad: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    if window.is_depthwise:
        depthwise_input(window, grad, weight, bias, out)
        return
    if winograd.fits(window, out.dtype):
        winograd.to_input(window, grad, weight, bias, out)
        return
    held = weight if bias is None else bias  # (something must be given)
    for one in _inputs(out.memory.device, window, out.dtype, bias is not None):
        one.launch((weight, grad, held, out))


@lru_cache(maxsize=1 << 12)
def _inputs(device: Device, w: ConvGeometry, kind: torch.dtype, has_bias: bool) -> list[Product]:
    found = []
    for a, b in pairs(range(min(w.stride_h, w.h)), range(min(w.stride_w, w.w))):
        table, deep = _table_in(device.index, w, a, b)
        found.append(_product(
            device, w, kind, has_bias,
            rows=w.group_in_channels, deep=deep, table=table,
            weight_steps=(w.r * w.s, w.group_out_channels * w.reduction_size),
            read=(w.k * w.p * w.q, w.group_out_channels * w.p * w.q, w.p, w.q),
            places=(-(-(w.h - a) // w.stride_h), -(-(w.w - b) // w.stride_w), 1, 1, 0, 0),
            written=(
                a * w.w + b, w.c * w.h * w.w, w.h * w.w, w.group_in_channels * w.h * w.w,
                w.stride_h * w.w, w.stride_w,
            ),
            checked=True,
        ))  # fmt: skip
    return found


def _product(
    device: Device, w: ConvGeometry, kind: torch.dtype, has_bias: bool, *,
    rows: int, deep: int, table: Any, weight_steps: tuple[int, int], read: tuple[int, ...],
    places: tuple[int, ...], written: tuple[int, ...], checked: bool,
) -> Product:  # fmt: skip
    columns = w.n * places[0] * places[1]
    return Product(
        device, ("image", "conv"), kind, (("CHECKED", int(checked)), ("HAS_BIAS", int(has_bias))),
        CONV, (rows, columns, deep, w.groups),
        [
            rows, columns, deep, At(0), *weight_steps, At(1), *read, read[3], 1, *places,
            table, At(2), At(3, written[0]), *written[1:],
        ],
    )  # fmt: skip


def _to_weight(window: ConvGeometry, grad: OclTensor, one: OclTensor, out: OclTensor) -> None:
    if window.is_depthwise:
        depthwise_weight(window, grad, one, out)
        return
    if winograd.fits(window, out.dtype):
        winograd.to_weight(window, grad, one, out)
        return
    device, kind = out.memory.device, out.dtype
    ready, parts = _weight(device, window, kind)
    whole = out
    if parts > 1:
        whole = empty(device.index, (parts, out.numel()), (out.numel(), 1), kind)
    ready.launch((grad, one, whole))
    if parts > 1:
        reduce("0", "A + X", "A", whole, [0], out)


@lru_cache(maxsize=1 << 12)
def _weight(device: Device, w: ConvGeometry, kind: torch.dtype) -> tuple[Product, int]:
    rows, columns, deep = w.group_out_channels, w.reduction_size, w.n * w.p * w.q
    parts, each = split_k(device, rows, columns, deep, w.groups)
    ready = Product(
        device, ("image", "conv_weight"), kind, (("CHECKED", int(w.is_padded)),), CONV_WEIGHT,
        (rows, columns, deep, w.groups * parts),
        [
            rows, columns, deep, At(0), w.k * w.p * w.q, w.p * w.q,
            w.group_out_channels * w.p * w.q, w.q, 1, At(1), w.c * w.h * w.w,
            w.group_in_channels * w.h * w.w, w.h, w.w, w.w, 1,
            w.p, w.q, w.stride_h, w.stride_w, -w.pad_h, -w.pad_w,
            _table_out(device.index, w), parts, each, At(2, whole=True),
        ],
    )  # fmt: skip
    return ready, parts


@lru_cache(maxsize=1 << 10)
def _table_out(index: int, w: ConvGeometry) -> Any:
    """For each channel that is read and each place in the window: see conv.cl."""
    c, r, s = np.meshgrid(
        np.arange(w.group_in_channels), np.arange(w.r), np.arange(w.s), indexing="ij"
    )
    h, v = r * w.dilation_h, s * w.dilation_w
    rows = (c * w.r * w.s + r * w.s + s, c * w.h * w.w + h * w.w + v, h, v)
    return _sent(index, rows)


@lru_cache(maxsize=1 << 10)
def _table_in(index: int, w: ConvGeometry, a: int, b: int) -> tuple[Any, int]:
    """The same for a gradient: channels that were written, and what reaches these places."""
    rs = [r for r in range(w.r) if (a + w.pad_h - r * w.dilation_h) % w.stride_h == 0]
    ss = [s for s in range(w.s) if (b + w.pad_w - s * w.dilation_w) % w.stride_w == 0]
    k, r, s = np.meshgrid(
        np.arange(w.group_out_channels),
        np.array(rs, np.int64),
        np.array(ss, np.int64),
        indexing="ij",
    )
    h = (a + w.pad_h - r * w.dilation_h) // w.stride_h
    v = (b + w.pad_w - s * w.dilation_w) // w.stride_w
    weight = k * w.group_in_channels * w.r * w.s + r * w.s + s
    return _sent(index, (weight, k * w.p * w.q + h * w.q + v, h, v)), k.size


def _sent(index: int, rows: Sequence[Any]) -> Any:
    host = np.stack([one.ravel() for one in rows], 1).astype(np.int32)
    if not host.size:
        host = np.zeros((1, 4), np.int32)
    return devices()[index].constant(host)


CONV = (
    *[np.int32] * 3, None, *[np.int32] * 3, None, *[np.int32] * 3, *[np.int32] * 4,
    *[np.int32] * 6, None, None, np.int32, None, *[np.int32] * 6,
)  # fmt: skip
CONV_WEIGHT = (
    *[np.int32] * 3, None, *[np.int32] * 6, None, *[np.int32] * 3, *[np.int32] * 4,
    *[np.int32] * 6, None, np.int32, np.int32, None,
)  # fmt: skip
