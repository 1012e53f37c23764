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
from cputrain.opencl.types import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.conv_geometry import ConvGeometry
    from cputrain.opencl.device import Device

ITEMS = 128
"""That add up a channel's part of the gradient of a weight."""

WAVES = 8
"""Groups for each unit of a device that are enough."""


def depthwise(
    window: ConvGeometry, one: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the convolution."""
    _places("output", window, one, weight, bias, out)


def depthwise_input(
    window: ConvGeometry, grad: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the gradient of its input."""
    _places("input", window, grad, weight, bias, out)


def _places(
    name: str, window: ConvGeometry, one: OclTensor, weight: OclTensor, bias: OclTensor | None,
    out: OclTensor,
) -> None:  # fmt: skip
    device = out.memory.device
    ready = _kernel_for(device, name, window, out.dtype, bias is not None)
    held = weight if bias is None else bias  # (something must be given)
    count = out.numel()
    device.launch(
        ready, *launch_size(count), count, *_form(window),
        one.memory.buffer, one.storage_offset(), weight.memory.buffer, weight.storage_offset(),
        held.memory.buffer, held.storage_offset(), out.memory.buffer, out.storage_offset(),
    )  # fmt: skip


def depthwise_weight(window: ConvGeometry, grad: OclTensor, one: OclTensor, out: OclTensor) -> None:
    """Write the gradient of its weight."""
    w = window
    device = out.memory.device
    ready = _kernel_for(device, "weight", w, out.dtype, False)
    places = w.n * w.p * w.q
    parts = max(1, min(WAVES * device.units // w.k, places // (4 * ITEMS), 256))
    whole = out
    if parts > 1:
        whole = empty(device.index, (parts, out.numel()), (out.numel(), 1), out.dtype)
    device.launch(
        ready, (parts * ITEMS, w.k), (ITEMS, 1), parts, w.n, *_form(w),
        grad.memory.buffer, grad.storage_offset(), one.memory.buffer, one.storage_offset(),
        whole.memory.buffer,
    )  # fmt: skip
    if parts > 1:
        reduce("0", "A + X", "A", whole, [0], out)


@lru_cache(maxsize=1 << 12)
def _form(w: ConvGeometry) -> tuple[int, ...]:
    return w.c, w.h, w.w, w.k, w.p, w.q, w.group_out_channels, w.pad_h, w.pad_w


def _kernel_for(
    device: Device, name: str, w: ConvGeometry, kind: torch.dtype, has_bias: bool
) -> Any:
    """Return the kernel for this kernel size, stride and dilation; image sizes are arguments."""
    return _build_kernel(
        device,
        name,
        kind,
        w.r,
        w.s,
        w.stride_h,
        w.stride_w,
        w.dilation_h,
        w.dilation_w,
        int(has_bias),
    )


@lru_cache
def _build_kernel(device: Device, name: str, kind: torch.dtype, *numbers: int) -> Any:
    names = ("R", "S", "STEP_H", "STEP_W", "GAP_H", "GAP_W", "HAS_BIAS")
    defined = {"T": NAMES[kind], "ITEMS": ITEMS, **dict(zip(names, numbers, strict=True))}
    types = WEIGHT if name == "weight" else PLACES
    return compile_kernel(device, program_source("depthwise", defined), name, types)


PLACES = (np.int32, *[np.int32] * 9, *(None, np.int32) * 4)
WEIGHT = (np.int32, np.int32, *[np.int32] * 9, None, np.int32, None, np.int32, None)
