"""Row-wise normalisation: softmax and layer norm."""

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
from cputrain.opencl.types import NAMES, SCALARS, are_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten

ITEMS = 128
"""Work-items per row."""

PARTS = 128
"""Of rows, at the most, whose columns are added up side by side."""


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
    found = _softmax(self, dim, is_log=False)
    if found is NotImplemented:
        return found
    return found.masked_fill(self.amax(dim, keepdim=True) == float("-inf"), 0)


@kernel(aten._softmax_backward_data.default)
def softmax_backward(
    grad_output: OclTensor, output: OclTensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """Compute the gradient of softmax."""
    return _of_softmax(grad_output, output, dim, input_dtype, is_log=False)


@kernel(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    grad_output: OclTensor, output: OclTensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """Compute the gradient of log-softmax."""
    return _of_softmax(grad_output, output, dim, input_dtype, is_log=True)


def _softmax(self: OclTensor, dim: int, *, is_log: bool) -> Any:
    if not _are_ours(self) or not self.dim() or not -self.dim() <= dim < self.dim():
        return NotImplemented
    one = as_contiguous(self.transpose(dim, -1))
    out = empty(self.memory.device.index, one.size(), one.stride(), self.dtype)
    size = one.size(-1)
    _launch(
        "softmax", one, one.numel() // size,
        [size, *buffer_arguments(one), out.memory.buffer], IS_LOG=is_log,
    )  # fmt: skip
    return as_contiguous(out.transpose(dim, -1))


def _of_softmax(
    grad: OclTensor, output: OclTensor, dim: int, kind: torch.dtype, *, is_log: bool
) -> Any:
    if not _are_ours(output, grad) or kind is not output.dtype or not output.dim():
        return NotImplemented
    one, given = as_contiguous(grad.transpose(dim, -1)), as_contiguous(output.transpose(dim, -1))
    out = empty(output.memory.device.index, given.size(), given.stride(), output.dtype)
    size = given.size(-1)
    _launch(
        "of_softmax", given, given.numel() // size,
        [size, *buffer_arguments(one, given), out.memory.buffer], IS_LOG=is_log,
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
    """Normalised; and means and inverse deviations, for the backward."""
    first = input.dim() - len(normalized_shape)
    if not _are_ours(input, weight, bias) or list(input.shape[first:]) != list(normalized_shape):
        return NotImplemented
    index = input.memory.device.index
    size = prod(normalized_shape)
    few = [*input.shape[:first], *[1] * len(normalized_shape)]
    one = as_contiguous(input)
    out = empty(index, input.size(), one.stride(), input.dtype)
    mean, inverse = (empty(index, few, contiguous(few), input.dtype) for _ in range(2))
    held = [one if each is None else as_contiguous(each) for each in (weight, bias)]
    _launch(
        "normalised", one, one.numel() // size,
        [size, *buffer_arguments(one, *held), SCALARS[input.dtype](eps), out.memory.buffer,
         mean.memory.buffer, inverse.memory.buffer],
        HAS_WEIGHT=weight is not None, HAS_BIAS=bias is not None,
    )  # fmt: skip
    return out, mean, inverse


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
    """Gradients of the input, the weight and the bias."""
    if not _are_ours(input, grad_out, mean, rstd, weight):
        return NotImplemented
    device, kind = input.memory.device, input.dtype
    size = prod(normalized_shape)
    rows = input.numel() // size
    one, grad, middle, by = (as_contiguous(each) for each in (input, grad_out, mean, rstd))
    of_input = of_weight = of_bias = None
    if output_mask[0]:
        of_input = empty(device.index, input.size(), one.stride(), kind)
        held = one if weight is None else as_contiguous(weight)
        _launch(
            "of_normalised", one, rows,
            [size, *buffer_arguments(grad, one, middle, by, held), of_input.memory.buffer],
            HAS_WEIGHT=weight is not None,
        )  # fmt: skip
    if (output_mask[1] and weight is not None) or (output_mask[2] and bias is not None):
        parts = max(1, min(PARTS, rows // 8))
        both = [empty(device.index, (parts, size), (size, 1), kind) for _ in range(2)]
        ready = _kernel_for(device, "of_columns", kind, ())
        device.launch(
            ready, (-(-size // ITEMS) * ITEMS, parts), (ITEMS, 1), rows, size, parts,
            *buffer_arguments(grad, one, middle, by), *[each.memory.buffer for each in both],
        )  # fmt: skip
        whole = [empty(device.index, normalized_shape, contiguous(normalized_shape), kind)
                 for _ in both]  # fmt: skip
        for of_parts, out in zip(both, whole, strict=True):
            reduce("0", "A + X", "A", of_parts, [0], out)
        of_weight = whole[0] if output_mask[1] and weight is not None else None
        of_bias = whole[1] if output_mask[2] and bias is not None else None
    return of_input, of_weight, of_bias


def _are_ours(*tensors: OclTensor | None) -> bool:
    first = tensors[0]
    assert first is not None
    return (
        first.dtype.is_floating_point
        and are_supported(first.memory.device, first.dtype)
        and first.numel() > 0
        and all(one is None or one.dtype is first.dtype for one in tensors)
    )


def _launch(name: str, one: OclTensor, rows: int, arguments: list[Any], **defined: bool) -> None:
    device = one.memory.device
    ready = _kernel_for(device, name, one.dtype, tuple(defined.items()))
    device.launch(ready, (rows * ITEMS,), (ITEMS,), *arguments)


FLAGS = ("IS_LOG", "HAS_WEIGHT", "HAS_BIAS")


@lru_cache
def _kernel_for(
    device: Device, name: str, kind: torch.dtype, defined: tuple[tuple[str, bool], ...]
) -> Any:
    scalar, tensor = SCALARS[kind], (None, np.int64)
    types = {
        "softmax": (np.int32, *tensor, None),
        "of_softmax": (np.int32, *tensor * 2, None),
        "normalised": (np.int32, *tensor * 3, scalar, None, None, None),
        "of_normalised": (np.int32, *tensor * 5, None),
        "of_columns": (np.int64, np.int32, np.int32, *tensor * 4, None, None),
    }[name]
    flags = {**dict.fromkeys(FLAGS, 0), **{key: int(value) for key, value in defined}}
    source = program_source("rows", {"T": NAMES[kind], "ITEMS": ITEMS, **flags})
    return compile_kernel(device, source, name, types)
