"""Losses: negative log likelihood, mean squared error, binary cross entropy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import GROUP, launch_size
from cputrain.opencl.ops.pointwise import compute_expression, result_type
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.types import are_supported, element_definitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

NONE, MEAN = 0, 1
"""Torch's numbers of the reductions "none" and "mean"; "sum" is 2."""


@kernel(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    self: OclTensor, target: OclTensor, weight: OclTensor | None, reduction: int, ignore_index: int
) -> Any:
    """Return the negative log likelihood and the total weight of the targets not ignored."""
    if not _is_supported(self, target, weight):
        return NotImplemented
    device = self.memory.device
    dense_self, shared_arguments = (
        as_contiguous(self),
        _shared_arguments(self, target, weight, ignore_index),
    )
    size = target.size() if reduction == NONE else ()
    out = empty(device.index, size, contiguous(size), self.dtype)
    total = empty(device.index, (), (), self.dtype)
    if reduction == NONE:
        total.zero_()
        ocl_kernel = _kernel_for(device, "elementwise_loss", self.dtype, weight is not None, False)
        num_items, extra_arguments = target.numel(), []
    else:
        ocl_kernel = _kernel_for(
            device, "reduced_loss", self.dtype, weight is not None, reduction == MEAN
        )
        num_items, extra_arguments = GROUP, [total.memory.buffer]
    device.launch(
        ocl_kernel, *launch_size(num_items), *shared_arguments,
        dense_self.memory.buffer, dense_self.storage_offset(), out.memory.buffer, *extra_arguments,
    )  # fmt: skip
    return out, total


@kernel(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad_output: OclTensor, self: OclTensor, target: OclTensor, weight: OclTensor | None,
    reduction: int, ignore_index: int, total_weight: OclTensor,
) -> Any:  # fmt: skip
    """Return the gradient of the negative log likelihood with respect to its input."""
    if not _is_supported(self, target, weight) or grad_output.dtype is not self.dtype:
        return NotImplemented
    device = self.memory.device
    shared_arguments = _shared_arguments(self, target, weight, ignore_index)
    out = empty(device.index, self.size(), contiguous(self.size()), self.dtype)
    grad = as_contiguous(grad_output)
    ocl_kernel = _kernel_for(
        device, "loss_gradient", self.dtype, weight is not None, reduction == MEAN
    )
    num_items = self.numel()
    device.launch(
        ocl_kernel, *launch_size(num_items), *shared_arguments,
        grad.memory.buffer, grad.storage_offset(), int(reduction == NONE),
        total_weight.memory.buffer, total_weight.storage_offset(), out.memory.buffer,
    )  # fmt: skip
    return out


def _is_supported(self: OclTensor, target: Any, weight: OclTensor | None) -> bool:
    return (
        isinstance(target, OclTensor)
        and target.dtype is torch.int64
        and self.dtype.is_floating_point
        and are_supported(self.memory.device, self.dtype)
        and self.numel() > 0
        and self.dim() in (1, 2, 4)
        and tuple(target.size()) == (*self.size()[:-1][:1], *self.size()[2:])
        and (
            weight is None or (weight.dtype is self.dtype and weight.numel() == _num_classes(self))
        )
    )


def _num_classes(self: OclTensor) -> int:
    return self.size(0) if self.dim() == 1 else self.size(1)


def _shared_arguments(
    self: OclTensor, target: OclTensor, weight: OclTensor | None, ignore_index: int
) -> list[Any]:
    """Return the kernel arguments that all kernels of loss.cl begin with."""
    inner = self.size(2) * self.size(3) if self.dim() == 4 else 1
    dense_target = as_contiguous(target)
    weight_or_target = target if weight is None else as_contiguous(weight)
    return [
        target.numel(), _num_classes(self), inner, ignore_index, dense_target.memory.buffer,
        dense_target.storage_offset(), weight_or_target.memory.buffer,
        weight_or_target.storage_offset(),
    ]  # fmt: skip


@lru_cache
def _kernel_for(
    device: Device, name: str, dtype: torch.dtype, has_weight: bool, is_mean: bool
) -> Any:
    shared_types = (*[np.int64] * 4, None, np.int64, None, np.int64)
    extra_types = {
        "elementwise_loss": (None, np.int64, None),
        "reduced_loss": (None, np.int64, None, None),
        "loss_gradient": (None, np.int64, np.int64, None, np.int64, None),
    }[name]
    definitions = {
        **element_definitions(dtype), "HAS_WEIGHT": int(has_weight), "IS_MEAN": int(is_mean),
        "ITEMS": GROUP,
    }  # fmt: skip
    source = program_source("loss", definitions)
    return compile_kernel(device, source, name, (*shared_types, *extra_types))


def _apply_reduction(losses: Any, reduction: int) -> Any:
    if losses is NotImplemented or reduction == NONE:
        return losses
    return losses.mean() if reduction == MEAN else losses.sum()


def _elementwise_loss(expression: str, self: Any, target: Any) -> Any:
    if not isinstance(self, OclTensor) or not isinstance(target, OclTensor):
        return NotImplemented
    tensors = [("SELF", self), ("TARGET", target)]
    return compute_expression(expression, "floats", None, tensors, [], result_type([self, target]))


@kernel(aten.mse_loss.default)
def mse_loss(self: OclTensor, target: OclTensor, reduction: int = MEAN) -> Any:
    """Compute the squared error, reduced as requested."""
    return _apply_reduction(
        _elementwise_loss("(SELF - TARGET) * (SELF - TARGET)", self, target), reduction
    )


@kernel(aten.mse_loss_backward.default)
def mse_loss_backward(
    grad_output: OclTensor, self: OclTensor, target: OclTensor, reduction: int
) -> Any:
    """Return the gradient of the squared error with respect to its input."""
    scale = 2 / self.numel() if reduction == MEAN and self.numel() else 2
    return (self - target) * grad_output * scale


@kernel(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    self: OclTensor, target: OclTensor, weight: Any = None, pos_weight: Any = None,
    reduction: int = MEAN,
) -> Any:  # fmt: skip
    """Compute the binary cross entropy from logits, reduced as requested."""
    if pos_weight is not None:
        return NotImplemented
    losses = _elementwise_loss(
        "(SELF > 0 ? SELF : 0) - SELF * TARGET + log1p(exp(-fabs(SELF)))", self, target
    )
    if losses is not NotImplemented and weight is not None:
        losses = losses * weight
    return _apply_reduction(losses, reduction)
