"""Batch normalisation: a reduction per channel, then an elementwise kernel."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import GROUP
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, buffer_arguments, empty
from cputrain.opencl.types import NAMES, SCALARS, are_supported, index_type

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten

WAVES = 8
"""Groups of items for each unit of a device that are enough."""

LEAST = 4
"""Elements that an item adds up."""

MAX_GROUPS = 32
"""Groups of a channel: those that need the sums of all put them together, each for itself."""


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
    """Return the normalised input, and each channel's mean and inverse std for the backward."""
    if not _is_ours(input, weight, bias, running_mean, running_var):
        return NotImplemented
    has_running = running_mean is not None and running_var is not None
    if (training and input.numel() == input.size(1)) or not (training or has_running):
        return NotImplemented  # torch will say what is wrong
    device, kind = input.memory.device, input.dtype
    one = as_contiguous(input)
    channels, inner = _form(input)
    kept = [empty(device.index, (size,), (1,), kind) for size in [channels * training] * 2]
    parts, sums = _parts(one, channels)
    form = [channels, inner, input.numel() // channels, parts]
    number = SCALARS[kind]
    if training:
        _launch("parts_of", one, parts, [*form, *buffer_arguments(one), sums.memory.buffer])
    running = (running_mean, running_var) if has_running else kept
    out = empty(device.index, input.size(), contiguous(input.size()), kind)
    _launch(
        "normalised", one, parts,
        [*form, *buffer_arguments(one), sums.memory.buffer, number(eps), number(momentum),
         *[each.memory.buffer for each in kept], *buffer_arguments(*running),
         *buffer_arguments(*(one if each is None else each for each in (weight, bias))),
         out.memory.buffer],
        IS_TRAINED=training, HAS_RUNNING=has_running, HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None,
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
    """Return the gradients of the input, the weight and the bias."""
    first, second = (save_mean, save_invstd) if train else (running_mean, running_var)
    if first is None or second is None or not _is_ours(input, grad_out, weight, first, second):
        return NotImplemented
    device, kind = input.memory.device, input.dtype
    one, grad = as_contiguous(input), as_contiguous(grad_out)
    channels, inner = _form(input)
    parts, sums = _parts(one, channels)
    form = [channels, inner, input.numel() // channels, parts]
    _launch(
        "parts_of_gradient", one, parts,
        [*form, *buffer_arguments(grad, one, first), sums.memory.buffer],
    )  # fmt: skip
    of_weight, of_bias = (empty(device.index, (channels,), (1,), kind) for _ in range(2))
    size = input.size() if output_mask[0] else (0,)
    of_input = empty(device.index, size, contiguous(size), kind)
    _launch(
        "gradients", one, parts if output_mask[0] else 1,
        [*form, *buffer_arguments(grad, one, first, second), SCALARS[kind](eps),
         *buffer_arguments(one if weight is None else weight), sums.memory.buffer,
         of_weight.memory.buffer, of_bias.memory.buffer, of_input.memory.buffer],
        IS_TRAINED=train, HAS_WEIGHT=weight is not None, HAS_OUT=output_mask[0],
    )  # fmt: skip
    found = (of_input, of_weight, of_bias)
    return tuple(one if wanted else None for one, wanted in zip(found, output_mask, strict=True))


def _is_ours(first: OclTensor, *others: OclTensor | None) -> bool:
    kind = first.dtype
    if not (kind.is_floating_point and are_supported(first.memory.device, kind)):
        return False
    if first.dim() < 2 or not first.numel():
        return False
    for one in others:
        if one is not None and (one.dtype is not kind or (one.dim() == 1 and one.stride(0) != 1)):
            return False
    return True


def _form(one: OclTensor) -> tuple[int, int]:
    """Return the number of channels and the number of elements of a channel in a sample."""
    return one.size(1), one.numel() // (one.size(0) * one.size(1))


def _parts(one: OclTensor, channels: int) -> tuple[int, OclTensor]:
    """Return the number of work-groups per channel and a buffer for their partial sums."""
    device = one.memory.device
    count = one.numel() // channels
    parts = max(1, min(WAVES * device.units // channels, count // (LEAST * GROUP), MAX_GROUPS))
    return parts, empty(device.index, (channels, parts, 3), (parts * 3, 3, 1), one.dtype)


def _launch(name: str, one: OclTensor, groups: int, arguments: list[Any], **defined: bool) -> None:
    """Enqueue a kernel with `groups` work-groups for each channel."""
    device = one.memory.device
    counts = index_type(one.numel())
    ready = _kernel_for(device, name, one.dtype, counts, tuple(defined.items()))
    device.launch(ready, (groups * GROUP, arguments[0]), (GROUP, 1), *arguments)


FLAGS = ("IS_TRAINED", "HAS_RUNNING", "HAS_WEIGHT", "HAS_BIAS", "HAS_OUT")


@lru_cache
def _kernel_for(
    device: Device,
    name: str,
    kind: torch.dtype,
    counts: str,
    defined: tuple[tuple[str, bool], ...],
) -> Any:
    number, scalar, small = np.int64, SCALARS[kind], np.int32
    tensor = (None, number)
    form = (small, small, number, small)
    types = {
        "parts_of": (*form, *tensor, None),
        "normalised": (*form, *tensor, None, scalar, scalar, None, None, *tensor * 4, None),
        "parts_of_gradient": (*form, *tensor * 3, None),
        "gradients": (*form, *tensor * 4, scalar, *tensor, *[None] * 4),
    }[name]
    flags = {**dict.fromkeys(FLAGS, 0), **{key: int(value) for key, value in defined}}
    named = {"T": NAMES[kind], "N": counts, "ITEMS": GROUP, **flags}
    return compile_kernel(device, program_source("channels", named), name, types)
