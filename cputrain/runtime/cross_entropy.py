"""Compute softmax cross entropy by kernels of cputrain, where these have the same effects.

The forward computes the gradient of the input too, which backward has to multiply by the loss's.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from cputrain.kernels.cross_entropy import CrossEntropyKernels
from cputrain.kernels.proof import is_cross_entropy_right
from cputrain.runtime.kernel_patches import KernelPatches

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.runtime.plain_tensors import PlainTensors

MIN_ELEMENTS, MIN_CLASSES = 1 << 19, 512
"""Smallest inputs, and rows, for which the kernels are faster; measured in docs/benchmarks."""

NUM_ARGUMENTS = 6
"""Number of arguments with which torch.nn.functional calls the operator."""

MEAN, SUM = 1, 2
"""Reductions, by torch's numbers."""


class _LossCall(NamedTuple):
    """A call of the operator, beside the input and the targets."""

    original: Callable[..., Tensor]
    options: tuple[Any, ...]
    tensors: PlainTensors


class _CrossEntropy(Function):
    """Cross entropy whose gradient is computed already."""

    @staticmethod
    def forward(
        ctx: Any, call: _LossCall, computed: tuple[Tensor, Tensor], data: Tensor, targets: Tensor
    ) -> Tensor:
        loss, ctx.data_grad = computed
        ctx.call = call
        ctx.targets, ctx.version = targets, targets._version
        ctx.save_for_backward(targets, data)
        ctx.set_materialize_grads(False)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return (None,) * 4
        data_grad, ctx.data_grad = ctx.data_grad, None
        call: _LossCall = ctx.call
        if (
            data_grad is None
            or torch.is_grad_enabled()  # by create_graph
            or not call.tensors.is_eager()
            or not call.tensors.have_plain_keys([grad])
            or grad.dtype is not torch.float32
            or ctx.targets._version != ctx.version
            or not math.isfinite(factor := grad.item())  # times 0 it is not 0
        ):
            # that a script has changed its targets is an error, and not so its input
            return None, None, _gradient_of_torch(call, ctx.saved_tensors, grad), None
        if factor != 1:
            data_grad.mul_(grad)
        return None, None, data_grad, None


_Node: Any = _CrossEntropy._backward_cls
_Node.__name__ = "NllLossBackward0"  # as a loss is printed


def _gradient_of_torch(call: _LossCall, saved: tuple[Tensor, ...], grad: Tensor) -> Tensor:
    """Return the gradient as torch's operators compute it, which can be differentiated."""
    targets, data = saved
    is_differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        if not is_differentiable:
            data = data.detach().requires_grad_()
        loss = call.original(data, targets, *call.options)
        (data_grad,) = torch.autograd.grad(loss, data, grad, create_graph=is_differentiable)
    return data_grad


class CrossEntropies(KernelPatches[CrossEntropyKernels]):
    """Kernels for cross entropy, and the patch of torch's function."""

    def __init__(self) -> None:
        super().__init__("cross entropy", CrossEntropyKernels, is_cross_entropy_right)
        self._original = torch._C._nn.cross_entropy_loss
        self.replace([torch._C._nn], "cross_entropy_loss", self._compute_call)

    def _compute_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the loss; None if it is torch's to compute."""
        if (
            len(args) != NUM_ARGUMENTS
            or kwargs
            or type(args[0]) is not Tensor
            or type(args[1]) is not Tensor
            or args[2] is not None
            or args[0].dtype is not torch.float32
            or not args[0].is_cpu
            or args[0].numel() < MIN_ELEMENTS
        ):
            return None
        return self._compute(args[0], args[1], args[2:])

    def _compute(self, data: Tensor, targets: Tensor, options: tuple[Any, ...]) -> Tensor | None:
        """Return the loss; None if the kernels might not have the effects of torch's operator."""
        _, reduction, ignored, smoothing = options
        if (
            not self.is_on
            or self.problem
            or not self._tensors.is_eager()
            or not self._tensors.have_plain_keys([data, targets])
            or targets.dtype is not torch.int64
            or data.dim() != 2
            or data.size(1) < MIN_CLASSES
            or targets.shape != data.shape[:1]
            or not data.is_contiguous()
            or not targets.is_contiguous()
            or reduction not in {MEAN, SUM}
            or type(ignored) is not int
            or smoothing != 0
        ):
            return None
        needs_grad = torch.is_grad_enabled() and data.requires_grad
        if needs_grad and torch._C._autograd._top_saved_tensors_default_hooks(True) is not None:
            return None  # they may do anything with what is saved
        kernels = self.load()
        if kernels is None:
            return None
        computed = kernels.compute(
            data, targets, ignored, is_mean=reduction == MEAN, needs_grad=needs_grad
        )
        if computed is None:
            return None
        self.num_computed += 1
        if computed[1] is None:
            return computed[0]
        call = _LossCall(self._original, options, self._tensors)
        apply: Callable[..., Tensor] = _CrossEntropy.apply
        return apply(call, computed, data, targets)
