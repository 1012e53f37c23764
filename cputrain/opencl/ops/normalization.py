"""Row-wise normalization: softmax and layer norm."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.reduction import reduce
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, buffer_arguments, empty
from cputrain.opencl.types import SCALARS, are_supported, computes_in, element_definitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten

ITEMS = 128
"""Work items per row."""

MAX_ROW_PARTS = 128
"""Maximum number of parts of the rows whose columns are summed in parallel."""


@kernel(aten._softmax.default)
def softmax(self: OclTensor, dim: int, half_to_float: bool) -> Any:
    """Compute softmax along a dimension."""
    return NotImplemented if half_to_float else _softmax(self, dim, is_log=False)


@kernel(aten._log_softmax.default)
def log_softmax(self: OclTensor, dim: int, half_to_float: bool) -> Any:
    """Compute log-softmax along a dimension."""
    return NotImplemented if half_to_float else _softmax(self, dim, is_log=True)


@kernel(aten._safe_softmax.default)
def safe_softmax(self: OclTensor, dim: int, dtype: Any = None) -> Any:
    """Compute softmax; return zeros for rows that are all -inf."""
    if dtype not in (None, self.dtype):
        return NotImplemented
    result = _softmax(self, dim, is_log=False)
    if result is NotImplemented:
        return result
    return result.masked_fill(self.amax(dim, keepdim=True) == float("-inf"), 0)


@kernel(aten._softmax_backward_data.default)
def softmax_backward(
    grad_output: OclTensor, output: OclTensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """Compute the gradient of softmax."""
    return _softmax_gradient(grad_output, output, dim, input_dtype, is_log=False)


@kernel(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    grad_output: OclTensor, output: OclTensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """Compute the gradient of log-softmax."""
    return _softmax_gradient(grad_output, output, dim, input_dtype, is_log=True)


def _softmax(self: OclTensor, dim: int, *, is_log: bool) -> Any:
    if not _are_supported(self) or not self.dim() or not -self.dim() <= dim < self.dim():
        return NotImplemented
    rows = as_contiguous(self.transpose(dim, -1))
    out = empty(self.memory.device.index, rows.size(), rows.stride(), self.dtype)
    size = rows.size(-1)
    _launch(
        "softmax", rows, rows.numel() // size,
        [size, *buffer_arguments(rows), out.memory.buffer], IS_LOG=is_log,
    )  # fmt: skip
    return as_contiguous(out.transpose(dim, -1))


def _softmax_gradient(
    grad: OclTensor, output: OclTensor, dim: int, dtype: torch.dtype, *, is_log: bool
) -> Any:
    if not _are_supported(output, grad) or dtype is not output.dtype or not output.dim():
        return NotImplemented
    grad_rows, output_rows = (
        as_contiguous(grad.transpose(dim, -1)),
        as_contiguous(output.transpose(dim, -1)),
    )
    out = empty(output.memory.device.index, output_rows.size(), output_rows.stride(), output.dtype)
    size = output_rows.size(-1)
    _launch(
        "softmax_gradient", output_rows, output_rows.numel() // size,
        [size, *buffer_arguments(grad_rows, output_rows), out.memory.buffer], IS_LOG=is_log,
    )  # fmt: skip
    return as_contiguous(out.transpose(dim, -1))


@kernel(aten.native_layer_norm.default)
def layer_norm(
    input: OclTensor,  # noqa: A002  (torch's name)
    normalized_shape: Sequence[int],
    weight: OclTensor | None,
    bias: OclTensor | None,
    eps: float,
) -> Any:
    """Return the normalized input, and each row's mean and inverse std for the backward."""
    first = input.dim() - len(normalized_shape)
    if not _are_supported(input, weight, bias) or list(input.shape[first:]) != list(
        normalized_shape
    ):
        return NotImplemented
    index = input.memory.device.index
    size = prod(normalized_shape)
    stats_size = [*input.shape[:first], *[1] * len(normalized_shape)]
    dense_input = as_contiguous(input)
    out = empty(index, input.size(), dense_input.stride(), input.dtype)
    mean, inverse_std = (
        empty(index, stats_size, contiguous(stats_size), computes_in(input.dtype)) for _ in range(2)
    )
    weight_and_bias = [
        dense_input if tensor is None else as_contiguous(tensor) for tensor in (weight, bias)
    ]
    _launch(
        "layer_norm", dense_input, dense_input.numel() // size,
        [size, *buffer_arguments(dense_input, *weight_and_bias), SCALARS[input.dtype](eps),
         out.memory.buffer, mean.memory.buffer, inverse_std.memory.buffer],
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
    )  # fmt: skip
    return out, mean, inverse_std


@kernel(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    grad_out: OclTensor,
    input: OclTensor,  # noqa: A002
    normalized_shape: Sequence[int],
    mean: OclTensor,
    rstd: OclTensor,
    weight: OclTensor | None,
    bias: OclTensor | None,
    output_mask: Sequence[bool],
) -> Any:
    """Return the gradients of the input, the weight and the bias."""
    device, dtype = input.memory.device, input.dtype
    computed = computes_in(dtype)
    if not _are_supported(input, grad_out, weight) or {mean.dtype, rstd.dtype} != {computed}:
        return NotImplemented
    size = prod(normalized_shape)
    rows = input.numel() // size
    dense_input, dense_grad, dense_mean, dense_rstd = (
        as_contiguous(tensor) for tensor in (input, grad_out, mean, rstd)
    )
    grad_input = grad_weight = grad_bias = None
    if output_mask[0]:
        grad_input = empty(device.index, input.size(), dense_input.stride(), dtype)
        dense_weight = dense_input if weight is None else as_contiguous(weight)
        _launch(
            "layer_norm_gradient", dense_input, rows,
            [size,
             *buffer_arguments(dense_grad, dense_input, dense_mean, dense_rstd, dense_weight),
             grad_input.memory.buffer],
            HAS_WEIGHT=weight is not None,
        )  # fmt: skip
    if (output_mask[1] and weight is not None) or (output_mask[2] and bias is not None):
        num_parts = max(1, min(MAX_ROW_PARTS, rows // 8))
        partial_sums = [
            empty(device.index, (num_parts, size), (size, 1), computed) for _ in range(2)
        ]
        column_kernel = _kernel_for(device, "weight_gradients", dtype, ())
        device.launch(
            column_kernel, (-(-size // ITEMS) * ITEMS, num_parts), (ITEMS, 1), rows, size,
            num_parts, *buffer_arguments(dense_grad, dense_input, dense_mean, dense_rstd),
            *[tensor.memory.buffer for tensor in partial_sums],
        )  # fmt: skip
        totals = [empty(device.index, normalized_shape, contiguous(normalized_shape), dtype)
                 for _ in partial_sums]  # fmt: skip
        for sums, out in zip(partial_sums, totals, strict=True):
            reduce("0", "A + X", "A", sums, [0], out)
        grad_weight = totals[0] if output_mask[1] and weight is not None else None
        grad_bias = totals[1] if output_mask[2] and bias is not None else None
    return grad_input, grad_weight, grad_bias


def _are_supported(*tensors: OclTensor | None) -> bool:
    first = tensors[0]
    assert first is not None
    return (
        first.dtype.is_floating_point
        and are_supported(first.memory.device, first.dtype)
        and first.numel() > 0
        and all(tensor is None or tensor.dtype is first.dtype for tensor in tensors)
    )


def _launch(
    name: str, tensor: OclTensor, rows: int, arguments: list[Any], **flags_by_name: bool
) -> None:
    device = tensor.memory.device
    ocl_kernel = _kernel_for(device, name, tensor.dtype, tuple(flags_by_name.items()))
    device.launch(ocl_kernel, (rows * ITEMS,), (ITEMS,), *arguments)


FLAGS = ("IS_LOG", "HAS_WEIGHT", "HAS_BIAS")
"""Preprocessor flags of normalization.cl."""


@lru_cache
def _kernel_for(
    device: Device, name: str, dtype: torch.dtype, flags_by_name: tuple[tuple[str, bool], ...]
) -> Any:
    scalar_type, tensor_types = SCALARS[dtype], (None, np.int64)
    types = {
        "softmax": (np.int32, *tensor_types, None),
        "softmax_gradient": (np.int32, *tensor_types * 2, None),
        "layer_norm": (np.int32, *tensor_types * 3, scalar_type, None, None, None),
        "layer_norm_gradient": (np.int32, *tensor_types * 5, None),
        "weight_gradients": (np.int64, np.int32, np.int32, *tensor_types * 4, None, None),
    }[name]
    flags = {**dict.fromkeys(FLAGS, 0), **{key: int(value) for key, value in flags_by_name}}
    source = program_source(
        "normalization", {**element_definitions(dtype), "ITEMS": ITEMS, **flags}
    )
    return compile_kernel(device, source, name, types)
