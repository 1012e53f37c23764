"""Batch norm: a reduction per channel, then an elementwise kernel."""

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
from cputrain.opencl.types import (
    SCALARS,
    access_definitions,
    are_supported,
    computes_in,
    element_definitions,
    index_type,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten

GROUPS_PER_UNIT = 8
"""Work-groups per compute unit that keep a device busy."""

MIN_ITEM_ELEMENTS = 4
"""Minimum number of elements that a work item sums."""

MAX_CHANNEL_GROUPS = 32
"""Maximum number of work-groups of a channel; each merges the partial sums of all of them."""


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
    """Return the normalized input, and each channel's mean and inverse std for the backward."""
    if not _is_supported(input, weight, bias, running_mean, running_var):
        return NotImplemented
    has_running = running_mean is not None and running_var is not None
    if (training and input.numel() == input.size(1)) or not (training or has_running):
        return NotImplemented  # torch raises its own error
    device, dtype = input.memory.device, input.dtype
    dense_input = as_contiguous(input)
    channels, inner = _num_channels_and_inner(input)
    saved = [
        empty(device.index, (size,), (1,), computes_in(dtype)) for size in [channels * training] * 2
    ]
    num_parts, partial_sums = _partial_sums(dense_input, channels)
    shape = [channels, inner, input.numel() // channels, num_parts]
    scalar_type = SCALARS[dtype]
    if training:
        _launch(
            "partial_moments",
            dense_input,
            num_parts,
            [*shape, *buffer_arguments(dense_input), partial_sums.memory.buffer],
        )
    running = (running_mean, running_var) if has_running else saved
    out = empty(device.index, input.size(), contiguous(input.size()), dtype)
    _launch(
        "batch_norm", dense_input, num_parts,
        [*shape, *buffer_arguments(dense_input), partial_sums.memory.buffer, scalar_type(eps),
         scalar_type(momentum), *[tensor.memory.buffer for tensor in saved],
         *buffer_arguments(*running),
         *buffer_arguments(
             *(dense_input if tensor is None else tensor for tensor in (weight, bias))
         ),
         out.memory.buffer],
        IS_TRAINING=training, HAS_RUNNING=has_running, HAS_WEIGHT=weight is not None,
        HAS_BIAS=bias is not None, PARAMETER=_parameter_dtype(input, weight, bias, running_mean),
    )  # fmt: skip
    return out, *saved


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
    if first is None or second is None or grad_out.dtype is not input.dtype:
        return NotImplemented
    if not _is_supported(input, weight, *(() if train else (first, second))):
        return NotImplemented
    if train and {first.dtype, second.dtype} != {computes_in(input.dtype)}:
        return NotImplemented
    device, dtype = input.memory.device, input.dtype
    dense_input, dense_grad = as_contiguous(input), as_contiguous(grad_out)
    channels, inner = _num_channels_and_inner(input)
    num_parts, partial_sums = _partial_sums(dense_input, channels)
    shape = [channels, inner, input.numel() // channels, num_parts]
    _launch(
        "partial_gradient_sums", dense_input, num_parts,
        [*shape, *buffer_arguments(dense_grad, dense_input, first), partial_sums.memory.buffer],
        STATISTIC=first.dtype,
    )  # fmt: skip
    parameter_dtype = _parameter_dtype(input, weight, running_mean)
    grad_weight, grad_bias = (
        empty(device.index, (channels,), (1,), parameter_dtype) for _ in range(2)
    )
    size = input.size() if output_mask[0] else (0,)
    grad_input = empty(device.index, size, contiguous(size), dtype)
    _launch(
        "gradients", dense_input, num_parts if output_mask[0] else 1,
        [*shape, *buffer_arguments(dense_grad, dense_input, first, second), SCALARS[dtype](eps),
         *buffer_arguments(dense_input if weight is None else weight), partial_sums.memory.buffer,
         grad_weight.memory.buffer, grad_bias.memory.buffer, grad_input.memory.buffer],
        IS_TRAINING=train, HAS_WEIGHT=weight is not None, HAS_OUT=output_mask[0],
        PARAMETER=parameter_dtype, STATISTIC=first.dtype,
    )  # fmt: skip
    gradients = (grad_input, grad_weight, grad_bias)
    return tuple(
        gradient if is_wanted else None
        for gradient, is_wanted in zip(gradients, output_mask, strict=True)
    )


def _is_supported(first: OclTensor, *others: OclTensor | None) -> bool:
    dtype = first.dtype
    if not (dtype.is_floating_point and are_supported(first.memory.device, dtype)):
        return False
    if first.dim() < 2 or not first.numel():
        return False
    parameters = [tensor for tensor in others if tensor is not None]
    dtypes = {tensor.dtype for tensor in parameters}
    if len(dtypes) > 1 or not dtypes <= {dtype, computes_in(dtype)}:
        return False
    return all(tensor.dim() != 1 or tensor.stride(0) == 1 for tensor in parameters)


def _parameter_dtype(first: OclTensor, *others: OclTensor | None) -> torch.dtype:
    """Return the dtype of weight, bias and running statistics: the input's, or a wider one."""
    return next((tensor.dtype for tensor in others if tensor is not None), first.dtype)


def _num_channels_and_inner(tensor: OclTensor) -> tuple[int, int]:
    """Return the number of channels and the number of elements of a channel in a sample."""
    return tensor.size(1), tensor.numel() // (tensor.size(0) * tensor.size(1))


def _partial_sums(tensor: OclTensor, channels: int) -> tuple[int, OclTensor]:
    """Return the number of work-groups per channel and a buffer for their partial sums."""
    device = tensor.memory.device
    num_elements = tensor.numel() // channels
    num_parts = max(
        1,
        min(
            GROUPS_PER_UNIT * device.num_units // channels,
            num_elements // (MIN_ITEM_ELEMENTS * GROUP),
            MAX_CHANNEL_GROUPS,
        ),
    )
    return num_parts, empty(
        device.index, (channels, num_parts, 3), (num_parts * 3, 3, 1), computes_in(tensor.dtype)
    )


def _launch(
    name: str,
    tensor: OclTensor,
    num_groups: int,
    arguments: list[Any],
    **options: bool | torch.dtype,
) -> None:
    """Enqueue a kernel with `num_groups` work-groups for each channel."""
    device = tensor.memory.device
    count_type = index_type(tensor.numel())
    ocl_kernel = _kernel_for(device, name, tensor.dtype, count_type, tuple(options.items()))
    device.launch(ocl_kernel, (num_groups * GROUP, arguments[0]), (GROUP, 1), *arguments)


FLAGS = ("IS_TRAINING", "HAS_RUNNING", "HAS_WEIGHT", "HAS_BIAS", "HAS_OUT")
"""Preprocessor flags of batch_norm.cl."""


@lru_cache
def _kernel_for(
    device: Device,
    name: str,
    dtype: torch.dtype,
    count_type: str,
    options: tuple[tuple[str, bool | torch.dtype], ...],
) -> Any:
    long_type, scalar_type, int_type = np.int64, SCALARS[dtype], np.int32
    tensor_types = (None, long_type)
    shape_types = (int_type, int_type, long_type, int_type)
    types = {
        "partial_moments": (*shape_types, *tensor_types, None),
        "batch_norm": (
            *shape_types,
            *tensor_types,
            None,
            scalar_type,
            scalar_type,
            None,
            None,
            *tensor_types * 4,
            None,
        ),
        "partial_gradient_sums": (*shape_types, *tensor_types * 3, None),
        "gradients": (*shape_types, *tensor_types * 4, scalar_type, *tensor_types, *[None] * 4),
    }[name]
    definitions: dict[str, Any] = {
        **element_definitions(dtype), "N": count_type, "ITEMS": GROUP, **dict.fromkeys(FLAGS, 0)
    }  # fmt: skip
    for key in ("PARAMETER", "STATISTIC"):
        definitions |= access_definitions(dtype, key)
    for key, value in options:
        if isinstance(value, torch.dtype):
            definitions |= access_definitions(value, key)
        else:
            definitions[key] = int(value)
    return compile_kernel(device, program_source("batch_norm", definitions), name, types)
