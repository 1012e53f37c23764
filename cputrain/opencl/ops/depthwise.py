"""Convolutions in which each channel is on its own: too little in common for products in tiles."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import GROUP
from cputrain.opencl.program import kernel_of, text_of
from cputrain.opencl.reduction import reduce
from cputrain.opencl.tensor import OclTensor, made
from cputrain.opencl.types import NAMES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device
    from cputrain.opencl.window import Window

ITEMS = 128
"""That add up a channel's part of the gradient of a weight."""

WAVES = 8
"""Groups for each unit of a device that are enough."""


def depthwise(
    window: Window, one: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the convolution."""
    _places("output", window, one, weight, bias, out)


def depthwise_input(
    window: Window, grad: OclTensor, weight: OclTensor, bias: OclTensor | None, out: OclTensor
) -> None:
    """Write the gradient of its input."""
    _places("input", window, grad, weight, bias, out)


def _places(
    name: str, window: Window, one: OclTensor, weight: OclTensor, bias: OclTensor | None,
    out: OclTensor,
) -> None:  # fmt: skip
    device = out.memory.device
    ready = _ready(device, name, window.replace(n=0), out.dtype, bias is not None, PLACES)
    held = weight if bias is None else bias  # (something must be given)
    count = out.numel()
    with device.lock:
        ready(
            device.queue, (-(-count // GROUP) * GROUP,), (GROUP,), count,
            one.memory.buffer, one.storage_offset(), weight.memory.buffer, weight.storage_offset(),
            held.memory.buffer, held.storage_offset(), out.memory.buffer, out.storage_offset(),
        )  # fmt: skip


def depthwise_weight(window: Window, grad: OclTensor, one: OclTensor, out: OclTensor) -> None:
    """Write the gradient of its weight."""
    w = window
    device = out.memory.device
    ready = _ready(device, "weight", w.replace(n=0), out.dtype, False, WEIGHT)
    places = w.n * w.p * w.q
    parts = max(1, min(WAVES * device.units // w.k, places // (4 * ITEMS), 256))
    whole = out
    if parts > 1:
        whole = made(device.index, (parts, out.numel()), (out.numel(), 1), out.dtype)
    with device.lock:
        ready(
            device.queue, (parts * ITEMS, w.k), (ITEMS, 1), parts, w.n,
            grad.memory.buffer, grad.storage_offset(), one.memory.buffer, one.storage_offset(),
            whole.memory.buffer,
        )  # fmt: skip
    if parts > 1:
        reduce("0", "A + X", "A", whole, [0], out)


@lru_cache(maxsize=1 << 12)
def _ready(
    device: Device, name: str, w: Window, kind: torch.dtype, has_bias: bool, types: tuple[Any, ...]
) -> Any:
    defined = {
        "T": NAMES[kind], "C": w.c, "H": w.h, "W": w.w, "K": w.k, "P": w.p, "Q": w.q, "R": w.r,
        "S": w.s, "EACH": w.each_out, "STEP_H": w.step_h, "STEP_W": w.step_w, "PAD_H": w.pad_h,
        "PAD_W": w.pad_w, "GAP_H": w.gap_h, "GAP_W": w.gap_w, "ITEMS": ITEMS,
        "HAS_BIAS": int(has_bias),
    }  # fmt: skip
    return kernel_of(device, text_of("depthwise", defined), name, types)


PLACES = (np.int32, *(None, np.int32) * 4)
WEIGHT = (np.int32, np.int32, None, np.int32, None, np.int32, None)
