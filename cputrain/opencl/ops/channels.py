"""Batch normalisation: two kernels for a channel's sums, and one over all elements."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import GROUP, in_groups
from cputrain.opencl.program import kernel_of, text_of
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, dense, made, places_of
from cputrain.opencl.types import NAMES, SCALARS, are_known

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten

WAVES = 8
"""Groups of items for each unit of a device that are enough."""

LEAST = 4
"""Elements that an item adds up."""


@kernel(aten.native_batch_norm.default)
def batch_norm(
    input: OclTensor,  # noqa: A002  (torch's name)
    weight: OclTensor | None,
    bias: OclTensor | None,
    running_mean: OclTensor | None,
    running_var: OclTensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalised; and means and inverse deviations of the channels, for the backward."""
    if not _is_ours(input, weight, bias, running_mean, running_var):
        return NotImplemented
    has_running = running_mean is not None and running_var is not None
    if (training and input.numel() == input.size(1)) or not (training or has_running):
        return NotImplemented  # torch will say what is wrong
    device, kind = input.memory.device, input.dtype
    one = dense(input)
    channels, inner = _form(input)
    first, second = running_mean, running_var
    kept = [made(device.index, (size,), (1,), kind) for size in [channels * training] * 2]
    if training:
        count, parts, sums = _parts(one, channels)
        _ask_groups(
            "parts_of", one, parts, channels,
            [channels, inner, count, parts, one.memory.buffer, one.storage_offset(),
             sums.memory.buffer],
        )  # fmt: skip
        first, second = kept
        held = (running_mean, running_var) if has_running else kept
        _ask(
            "whole", one, channels,
            [channels, count, parts, sums.memory.buffer, SCALARS[kind](eps),
             SCALARS[kind](momentum),
             *[each.memory.buffer for each in kept], *places_of(*held)],
            HAS_RUNNING=has_running,
        )  # fmt: skip
    out = made(device.index, input.size(), contiguous(input.size()), kind)
    _ask(
        "normalised", one, out.numel(),
        [channels, inner, out.numel(), *places_of(one, first, second), SCALARS[kind](eps),
         *places_of(*(one if each is None else each for each in (weight, bias))),
         out.memory.buffer],
        IS_KEPT=training, HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
    )  # fmt: skip
    return out, *kept


@kernel(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    grad_out: OclTensor,
    input: OclTensor,  # noqa: A002
    weight: OclTensor | None,
    running_mean: OclTensor | None,
    running_var: OclTensor | None,
    save_mean: OclTensor | None,
    save_invstd: OclTensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of the input, the weight and the bias."""
    first, second = (save_mean, save_invstd) if train else (running_mean, running_var)
    if first is None or second is None or not _is_ours(input, grad_out, weight, first, second):
        return NotImplemented
    device, kind = input.memory.device, input.dtype
    one, grad = dense(input), dense(grad_out)
    channels, inner = _form(input)
    count, parts, sums = _parts(one, channels)
    _ask_groups(
        "parts_of_gradient", one, parts, channels,
        [channels, inner, count, parts, *places_of(grad, one, first), sums.memory.buffer],
    )  # fmt: skip
    of_weight, of_bias = (made(device.index, (channels,), (1,), kind) for _ in range(2))
    number = SCALARS[kind](eps)
    _ask(
        "whole_gradient", one, channels,
        [channels, parts, sums.memory.buffer, *places_of(second), number,
         of_weight.memory.buffer, of_bias.memory.buffer],
        IS_KEPT=train,
    )  # fmt: skip
    of_input = None
    if output_mask[0]:
        of_input = made(device.index, input.size(), contiguous(input.size()), kind)
        _ask(
            "of_input", one, of_input.numel(),
            [channels, inner, of_input.numel(), count, *places_of(grad, one, first, second), number,
             *places_of(one if weight is None else weight), of_weight.memory.buffer,
             of_bias.memory.buffer, of_input.memory.buffer],
            IS_KEPT=train, HAS_WEIGHT=weight is not None, IS_TRAINED=train,
        )  # fmt: skip
    return of_input, of_weight if output_mask[1] else None, of_bias if output_mask[2] else None


def _is_ours(first: OclTensor, *others: OclTensor | None) -> bool:
    kind = first.dtype
    if not (kind.is_floating_point and are_known(first.memory.device, kind)):
        return False
    if first.dim() < 2 or not first.numel():
        return False
    for one in others:
        if one is not None and (one.dtype is not kind or (one.dim() == 1 and one.stride(0) != 1)):
            return False
    return True


def _form(one: OclTensor) -> tuple[int, int]:
    """Channels, and elements of one that lie behind one another."""
    return one.size(1), one.numel() // (one.size(0) * one.size(1))


def _parts(one: OclTensor, channels: int) -> tuple[int, int, OclTensor]:
    """Elements of a channel, and among how many groups they are divided; memory for their sums."""
    device = one.memory.device
    count, parts, size, stride = _divided(device, one.numel(), channels)
    return count, parts, made(device.index, size, stride, one.dtype)


@lru_cache(maxsize=1 << 12)
def _divided(device: Device, elements: int, channels: int) -> tuple[Any, ...]:
    count = elements // channels
    parts = max(1, min(WAVES * device.units // channels, count // (LEAST * GROUP), GROUP))
    return count, parts, (channels, parts, 3), (parts * 3, 3, 1)


def _ask_groups(name: str, one: OclTensor, parts: int, channels: int, arguments: list[Any]) -> None:
    device = one.memory.device
    ready = _ready(device, name, one.dtype, ())
    with device.lock:
        ready(device.queue, (parts * GROUP, channels), (GROUP, 1), *arguments)


def _ask(name: str, one: OclTensor, items: int, arguments: list[Any], **defined: bool) -> None:
    device = one.memory.device
    ready = _ready(device, name, one.dtype, tuple(defined.items()))
    with device.lock:
        ready(device.queue, *in_groups(items), *arguments)


FLAGS = ("HAS_RUNNING", "HAS_WEIGHT", "HAS_BIAS", "IS_KEPT", "IS_TRAINED")


@lru_cache
def _ready(
    device: Device, name: str, kind: torch.dtype, defined: tuple[tuple[str, bool], ...]
) -> Any:
    number, scalar, small = np.int64, SCALARS[kind], np.int32
    tensor = (None, number)
    form = (small, small, number)
    types = {
        "parts_of": (*form, small, *tensor, None),
        "whole": (small, number, small, None, scalar, scalar, None, None, *tensor * 2),
        "normalised": (*form, *tensor * 3, scalar, *tensor * 2, None),
        "parts_of_gradient": (*form, small, *tensor * 3, None),
        "whole_gradient": (small, small, None, *tensor, scalar, None, None),
        "of_input": (*form, number, *tensor * 4, scalar, *tensor, None, None, None),
    }[name]
    flags = {**dict.fromkeys(FLAGS, 0), **{key: int(value) for key, value in defined}}
    return kernel_of(
        device, text_of("channels", {"T": NAMES[kind], "ITEMS": GROUP, **flags}), name, types
    )
