"""Convolutions of 3 x 3 with a fourth of the multiplications: see kernels/winograd.cl.

What is between takes more than twice the memory of images; so it is done for a few at a time.
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
from cputrain.opencl.types import MAX_INT_INDEX, NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.conv_geometry import ConvGeometry
    from cputrain.opencl.device import Device

EACH = 36
"""Numbers of a tile of 6 x 6."""

FEWEST = 16
"""Channels that are worth it; with fewer, transforms take longer than they save."""

SHARE = 16
"""The part of a device's memory that what is between may take."""


@lru_cache(maxsize=1 << 12)
def fits(w: ConvGeometry, kind: torch.dtype) -> bool:
    """Whether a convolution, or its gradients, are done like this.

    In float64 they are not: whoever computes in it wants all digits.
    """
    return (
        kind is torch.float32
        and (w.r, w.s) == (3, 3)
        and (w.stride_h, w.stride_w, w.dilation_h, w.dilation_w, w.groups) == (1, 1, 1, 1, 1)
        and min(w.c, w.k) >= FEWEST
        and max(w.pad_h, w.pad_w) <= 2
        and min(w.p, w.q) > 2
        and EACH * max(w.c * w.k, max(w.c, w.k) * _tiles(w.p, w.q)) <= MAX_INT_INDEX
    )


def to_output(
    w: ConvGeometry, one: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the convolution to `out`."""
    windows = _of_window(weight, turned=False)
    for first, count in _images(w, out.memory.device):
        between = _of_image(one, first, count, (w.c, w.h, w.w), (w.p, w.q), (w.pad_h, w.pad_w))
        _to_output(windows, between, bias, out, first, count, (w.k, w.p, w.q))


def to_input(
    w: ConvGeometry, grad: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the gradient of the input: a convolution of the gradient by the rotated weight."""
    windows = _of_window(weight, turned=True)
    for first, count in _images(w, out.memory.device):
        between = _of_image(
            grad, first, count, (w.k, w.p, w.q), (w.h, w.w), (2 - w.pad_h, 2 - w.pad_w)
        )
        _to_output(windows, between, bias, out, first, count, (w.c, w.h, w.w))


def to_weight(w: ConvGeometry, grad: OclTensor, one: OclTensor, out: OclTensor) -> None:
    """Write the gradient of the weight."""
    device, kind = out.memory.device, out.dtype
    images = _images(w, device)
    size = EACH * w.k * w.c
    whole = empty(device.index, (len(images), EACH, w.k, w.c), (size, w.k * w.c, w.c, 1), kind)
    for number, (first, count) in enumerate(images):
        of_one = _of_image(one, first, count, (w.c, w.h, w.w), (w.p, w.q), (w.pad_h, w.pad_w))
        of_grad = _of_gradient(w, grad, first, count)
        there = OclTensor(whole.memory, (EACH, w.k, w.c), (w.k * w.c, w.c, 1), number * size, kind)
        turned = OclTensor(
            of_one.memory, (EACH, of_one.size(2), w.c), (of_one.stride(0), 1, of_one.stride(1)),
            0, kind,
        )  # fmt: skip
        multiply(of_grad, turned, there)
    if len(images) > 1:
        total = empty(device.index, (EACH, w.k, w.c), (w.k * w.c, w.c, 1), kind)
        reduce("0", "A + X", "A", whole, [0], total)
        whole = total
    ready = _kernel_for(device, "to_window", kind)
    device.launch(
        ready, *launch_size(w.k * w.c), w.k, w.c, whole.memory.buffer,
        out.memory.buffer, out.storage_offset(),
    )  # fmt: skip


def _tiles(p: int, q: int) -> int:
    return -(-p // 4) * -(-q // 4)


@lru_cache(maxsize=1 << 12)
def _images(w: ConvGeometry, device: Device) -> list[tuple[int, int]]:
    """Return (first image, number of images) of each chunk processed at a time."""
    tiles = max(_tiles(w.p, w.q), _tiles(w.h, w.w))
    each = EACH * tiles * (w.c + w.k) * 4
    room = min(device.memory // SHARE, 2 << 30)
    most = max(1, min(room // each, MAX_INT_INDEX // (EACH * tiles * max(w.c, w.k))))
    parts = -(-w.n // most)
    count = -(-w.n // parts)
    return [(first, min(count, w.n - first)) for first in range(0, w.n, count)]


def _between(device: Device, planes: int, tiles: int) -> OclTensor:
    return empty(device.index, (EACH, planes, tiles), (planes * tiles, tiles, 1), torch.float32)


def _of_window(weight: OclTensor, *, turned: bool) -> OclTensor:
    device = weight.memory.device
    k, c = weight.size(0), weight.size(1)
    rows, columns = (c, k) if turned else (k, c)
    out = _between(device, rows, columns)
    ready = _kernel_for(device, "of_window", weight.dtype, TURNED=turned)
    device.launch(
        ready, *launch_size(k * c), k, c, weight.memory.buffer, weight.storage_offset(),
        out.memory.buffer,
    )  # fmt: skip
    return out


def _of_image(
    one: OclTensor, first: int, count: int, image: tuple[int, int, int],
    written: tuple[int, int], pad: tuple[int, int],
) -> OclTensor:  # fmt: skip
    device = one.memory.device
    planes, h, v = image
    form = _form(written, planes, count)
    out = _between(device, planes, form[-1])
    ready = _kernel_for(device, "of_image", one.dtype)
    device.launch(
        ready, *launch_size(form[0]), *form, h, v, *pad,
        one.memory.buffer, one.storage_offset() + first * planes * h * v, out.memory.buffer,
    )  # fmt: skip
    return out


def _of_gradient(w: ConvGeometry, grad: OclTensor, first: int, count: int) -> OclTensor:
    device = grad.memory.device
    form = _form((w.p, w.q), w.k, count)
    out = _between(device, w.k, form[-1])
    ready = _kernel_for(device, "of_gradient", grad.dtype)
    device.launch(
        ready, *launch_size(form[0]), *form, grad.memory.buffer,
        grad.storage_offset() + first * w.k * w.p * w.q, out.memory.buffer,
    )  # fmt: skip
    return out


def _to_output(
    windows: OclTensor, between: OclTensor, bias: OclTensor | None, out: OclTensor, first: int,
    count: int, image: tuple[int, int, int],
) -> None:  # fmt: skip
    device = out.memory.device
    planes, p, q = image
    form = _form((p, q), planes, count)
    found = _between(device, planes, form[-1])
    multiply(windows, between, found)
    ready = _kernel_for(device, "to_output", out.dtype, HAS_BIAS=bias is not None)
    held = out if bias is None else bias  # (something must be given)
    device.launch(
        ready, *launch_size(form[0]), *form, found.memory.buffer,
        held.memory.buffer, held.storage_offset(),
        out.memory.buffer, out.storage_offset() + first * planes * p * q,
    )  # fmt: skip


def _form(written: tuple[int, int], planes: int, images: int) -> tuple[int, ...]:
    """Return the tile arguments of the kernels: total tiles first, tiles of a plane last."""
    p, q = written
    tiles = images * _tiles(p, q)
    return planes * tiles, planes, p, q, -(-p // 4), -(-q // 4), tiles


@lru_cache
def _kernel_for(device: Device, name: str, kind: torch.dtype, **defined: bool) -> Any:
    number = np.int32
    types = {
        "of_image": (*[number] * 11, None, number, None),
        "of_gradient": (*[number] * 7, None, number, None),
        "to_output": (*[number] * 7, None, None, number, None, number),
        "of_window": (number, number, None, number, None),
        "to_window": (number, number, None, None, number),
    }[name]
    flags = {"HAS_BIAS": 0, "TURNED": 0, **{key: int(value) for key, value in defined.items()}}
    return compile_kernel(
        device, program_source("winograd", {"T": NAMES[kind], **flags}), name, types
    )
