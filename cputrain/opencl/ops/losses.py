"""Losses: negative log likelihood, mean squared error, binary cross entropy."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import GROUP, launch_size
from cputrain.opencl.ops.pointwise import computed, promoted
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.types import NAMES, are_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

EACH, MEAN = 0, 1
"""Torch's numbers for what is made of all samples' losses; a sum is 2."""


@kernel(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(
    self: OclTensor, target: OclTensor, weight: OclTensor | None, reduction: int, ignore_index: int
) -> Any:
    """Return the negative log likelihood and the total weight of the targets not ignored."""
    if not _is_ours(self, target, weight):
        return NotImplemented
    device = self.memory.device
    one, given = as_contiguous(self), _given(self, target, weight, ignore_index)
    size = target.size() if reduction == EACH else ()
    out = empty(device.index, size, contiguous(size), self.dtype)
    total = empty(device.index, (), (), self.dtype)
    if reduction == EACH:
        total.zero_()
        ready = _kernel_for(device, "each_loss", self.dtype, weight is not None, False)
        items, last = target.numel(), []
    else:
        ready = _kernel_for(device, "whole_loss", self.dtype, weight is not None, reduction == MEAN)
        items, last = GROUP, [total.memory.buffer]
    device.launch(
        ready, *launch_size(items), *given,
        one.memory.buffer, one.storage_offset(), out.memory.buffer, *last,
    )  # fmt: skip
    return out, total


@kernel(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad_output: OclTensor, self: OclTensor, target: OclTensor, weight: OclTensor | None,
    reduction: int, ignore_index: int, total_weight: OclTensor,
) -> Any:  # fmt: skip
    """Return the gradient of the negative log likelihood with respect to its input."""
    if not _is_ours(self, target, weight) or grad_output.dtype is not self.dtype:
        return NotImplemented
    device = self.memory.device
    given = _given(self, target, weight, ignore_index)
    out = empty(device.index, self.size(), contiguous(self.size()), self.dtype)
    grad = as_contiguous(grad_output)
    ready = _kernel_for(device, "of_loss", self.dtype, weight is not None, reduction == MEAN)
    items = self.numel()
    device.launch(
        ready, *launch_size(items), *given,
        grad.memory.buffer, grad.storage_offset(), int(reduction == EACH),
        total_weight.memory.buffer, total_weight.storage_offset(), out.memory.buffer,
    )  # fmt: skip
    return out


def _is_ours(self: OclTensor, target: Any, weight: OclTensor | None) -> bool:
    return (
        isinstance(target, OclTensor)
        and target.dtype is torch.int64
        and self.dtype.is_floating_point
        and are_supported(self.memory.device, self.dtype)
        and self.numel() > 0
        and self.dim() in (1, 2, 4)
        and tuple(target.size()) == (*self.size()[:-1][:1], *self.size()[2:])
        and (weight is None or (weight.dtype is self.dtype and weight.numel() == _classes(self)))
    )


def _classes(self: OclTensor) -> int:
    return self.size(0) if self.dim() == 1 else self.size(1)


def _given(
    self: OclTensor, target: OclTensor, weight: OclTensor | None, ignore_index: int
) -> list[Any]:
    inner = self.size(2) * self.size(3) if self.dim() == 4 else 1
    goals, held = as_contiguous(target), target if weight is None else as_contiguous(weight)
    return [
        target.numel(), _classes(self), inner, ignore_index, goals.memory.buffer,
        goals.storage_offset(), held.memory.buffer, held.storage_offset(),
    ]  # fmt: skip


@lru_cache
def _kernel_for(
    device: Device, name: str, kind: torch.dtype, has_weight: bool, is_mean: bool
) -> Any:
    given = (*[np.int64] * 4, None, np.int64, None, np.int64)
    last = {
        "each_loss": (None, np.int64, None),
        "whole_loss": (None, np.int64, None, None),
        "of_loss": (None, np.int64, np.int64, None, np.int64, None),
    }[name]
    defined = {
        "T": NAMES[kind], "HAS_WEIGHT": int(has_weight), "IS_MEAN": int(is_mean), "ITEMS": GROUP
    }  # fmt: skip
    return compile_kernel(device, program_source("loss", defined), name, (*given, *last))


def _of_all(each: Any, reduction: int) -> Any:
    if each is NotImplemented or reduction == EACH:
        return each
    return each.mean() if reduction == MEAN else each.sum()


def _of_both(expression: str, self: Any, target: Any) -> Any:
    if not isinstance(self, OclTensor) or not isinstance(target, OclTensor):
        return NotImplemented
    both = [("SELF", self), ("TARGET", target)]
    return computed(expression, "floats", None, both, [], promoted([self, target]))


@kernel(aten.mse_loss.default)
def mse_loss(self: OclTensor, target: OclTensor, reduction: int = MEAN) -> Any:
    """Compute the squared error."""
    return _of_all(_of_both("(SELF - TARGET) * (SELF - TARGET)", self, target), reduction)


@kernel(aten.mse_loss_backward.default)
def mse_loss_backward(
    grad_output: OclTensor, self: OclTensor, target: OclTensor, reduction: int
) -> Any:
    """Return the gradient of the squared error with respect to its input."""
    by = 2 / self.numel() if reduction == MEAN and self.numel() else 2
    return (self - target) * grad_output * by


@kernel(aten.binary_cross_entropy_with_logits.default)
def cross_entropy_of_two(
    self: OclTensor, target: OclTensor, weight: Any = None, pos_weight: Any = None,
    reduction: int = MEAN,
) -> Any:  # fmt: skip
    """Compute binary cross entropy from logits."""
    if pos_weight is not None:
        return NotImplemented
    found = _of_both(
        "(SELF > 0 ? SELF : 0) - SELF * TARGET + log1p(exp(-fabs(SELF)))", self, target
    )
    if found is not NotImplemented and weight is not None:
        found = found * weight
    return _of_all(found, reduction)
