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
from cputrain.runtime.linear_cross_entropy import MIN_ELEMENTS as MIN_LINEAR_ELEMENTS
from cputrain.runtime.linear_cross_entropy import (
    LinearCalls,
    compute,
    have_hooks,
    is_whole_backward,
    layer_of,
)
from cputrain.runtime.saved_tensor_hooks import has_hooks, has_hooks_of_the_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.runtime.linear_cross_entropy import Gradients
    from cputrain.runtime.plain_tensors import PlainTensors

MIN_ELEMENTS, MIN_CLASSES = 1 << 19, 512
"""Smallest inputs, and rows, for which the kernels are faster; measured in docs/benchmarks."""

NUM_ARGUMENTS = 6
"""Number of arguments with which torch.nn.functional calls the operator."""

MEAN, SUM = 1, 2
"""Reductions, by torch's numbers."""


class _Usage:
    """Whether the gradient of a loss was used."""

    is_used = False


class _LossCall(NamedTuple):
    """A call of the operator, beside the input and the targets."""

    original: Callable[..., Tensor]
    options: tuple[Any, ...]
    tensors: PlainTensors
    usage: _Usage


class _CrossEntropy(Function):
    """Cross entropy whose gradient is computed already."""

    @staticmethod
    def forward(
        ctx: Any, call: _LossCall, computed: tuple[Tensor, Tensor], data: Tensor, targets: Tensor
    ) -> Tensor:
        loss, ctx.data_grad = computed
        _keep(ctx, call, data, targets)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return (None,) * 4
        data_grad, ctx.data_grad = ctx.data_grad, None
        ctx.call.usage.is_used = True
        if data_grad is None or not _is_factor(ctx, grad):
            return None, None, _gradient_of_torch(ctx.call, ctx.saved_tensors, grad), None
        return None, None, _times(data_grad, grad), None


class _LinearCrossEntropy(Function):
    """Cross entropy of a linear layer's output; the layer's gradients are computed already.

    The output is an input, too: where its gradient may be seen, it is computed, and the layer's are
    computed from it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        call: _LossCall,
        computed: tuple[Tensor, Gradients],
        mark: Tensor,
        targets: Tensor,
        outputs: tuple[Tensor, ...],
        data: Tensor,
        *_: Tensor | None,
    ) -> Tensor:
        loss, ctx.gradients = computed
        ctx.mark, ctx.outputs = mark, outputs
        _keep(ctx, call, data, targets)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        nothing = (None,) * 5
        if grad is None:
            return (*nothing, *(None,) * 4)
        gradients, ctx.gradients = ctx.gradients, None
        outputs, ctx.outputs = ctx.outputs, None
        ctx.call.usage.is_used = True
        if (
            gradients is None
            or not _is_factor(ctx, grad)
            or have_hooks(outputs)
            or not is_whole_backward(ctx.mark)
        ):
            data_grad = _gradient_of_torch(ctx.call, ctx.saved_tensors, grad)
            return (*nothing, data_grad, None, None, None)
        return *nothing, None, *(each if each is None else _times(each, grad) for each in gradients)


for _function in (_CrossEntropy, _LinearCrossEntropy):
    _Node: Any = _function._backward_cls
    _Node.__name__ = "NllLossBackward0"  # as a loss is printed


def _keep(ctx: Any, call: _LossCall, data: Tensor, targets: Tensor) -> None:
    """Keep the call in the context, with what backward needs where it calls torch's operators."""
    ctx.call = call
    ctx.targets, ctx.version = targets, targets._version
    ctx.save_for_backward(targets, data)
    ctx.set_materialize_grads(False)


def _is_factor(ctx: Any, grad: Tensor) -> bool:
    """Return whether gradients are those that are computed already, times that of the loss.

    That a script has changed its targets is an error, and not so its input.
    """
    tensors: PlainTensors = ctx.call.tensors
    return (
        not torch.is_grad_enabled()  # by create_graph
        and tensors.is_eager()
        and tensors.have_plain_keys([grad])
        and grad.dtype is torch.float32
        and ctx.targets._version == ctx.version
        and math.isfinite(grad.item())  # times 0 it is not 0
    )


def _times(computed: Tensor, grad: Tensor) -> Tensor:
    return computed if grad.item() == 1 else computed.mul_(grad)


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
        self._calls = LinearCalls(self._tensors)
        self._usage = _Usage()
        self._usage.is_used = True
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
        if needs_grad and has_hooks_of_the_script():
            return None  # they may do anything with what is saved
        kernels = self.load()
        if kernels is None:
            return None
        usage, self._usage = self._usage, _Usage() if needs_grad else self._usage
        call = _LossCall(self._original, options, self._tensors, self._usage)
        if needs_grad and usage.is_used and data.numel() >= MIN_LINEAR_ELEMENTS:
            # (no gradient was computed in vain before)
            loss = self._compute_with_layer(kernels, call, data, targets)
            if loss is not None:
                return loss
        if needs_grad and has_hooks():
            return None  # a memory limit counts what is saved, and not what is computed already
        computed = kernels.compute(
            data, targets, ignored, is_mean=reduction == MEAN, needs_grad=needs_grad
        )
        if computed is None:
            return None
        self.num_computed += 1
        if computed[1] is None:
            return computed[0]
        apply: Callable[..., Tensor] = _CrossEntropy.apply
        return apply(call, computed, data, targets)

    def _compute_with_layer(
        self, kernels: CrossEntropyKernels, call: _LossCall, data: Tensor, targets: Tensor
    ) -> Tensor | None:
        """Return the loss of the output of a linear layer; None if it is none."""
        layer = layer_of(data, self._tensors, self._calls)
        if layer is None or have_hooks(layer.outputs):
            return None
        _, reduction, ignored, _ = call.options
        with torch.no_grad():
            computed = compute(kernels, data, targets, ignored, layer, is_mean=reduction == MEAN)
        if computed is None:
            return None
        self.num_computed += 1
        mark = torch.empty(0, device="cpu", requires_grad=True)
        apply: Callable[..., Tensor] = _LinearCrossEntropy.apply
        return apply(call, computed, mark, targets, layer.outputs, data, *layer[:3])

    def remember_calls(self) -> None:
        """Remember calls of large layers already before a loss has needed one."""
        self._calls.start()

    def undo(self) -> None:
        super().undo()
        for patch in self._calls.patches:
            patch.undo()
