"""Compute batch norm in training by kernels of cputrain, where these have the same effects.

An activation that is called with the output of a batch norm remains torch's. Its gradient and that
of the batch norm are computed at once: from the activation's output to the batch norm's input. As
long as a script holds the output that lies between, or has hooks on it, gradients pass through it.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from functools import wraps
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from cputrain.kernels.batch_norm import Activation, BatchNormKernels
from cputrain.kernels.proof import is_batch_norm_right
from cputrain.runtime.kernel_patches import KernelPatches
from cputrain.runtime.saved_tensor_hooks import has_hooks_of_the_script

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.runtime.plain_tensors import PlainTensors

    Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]

MIN_ELEMENTS, MIN_PLANE = 1 << 18, 196
"""Smallest contiguous inputs, and their elements in a row, for which the kernels are faster."""

MIN_ELEMENTS_IN_ROWS = 1 << 19
"""Smallest input in channels last."""

MIN_ELEMENTS_PER_THREAD = 160_000
"""Smallest share of a thread; all are measured in docs/benchmarks."""

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}

NUM_ARGUMENTS = 9
"""Number of arguments with which torch.nn.functional calls torch.batch_norm."""


class _Options(NamedTuple):
    """What gradients are computed with, beside tensors."""

    kernels: BatchNormKernels
    tensors: PlainTensors
    eps: float


class _BatchNorm(Function):
    """Batch norm by the moments of a batch."""

    @staticmethod
    def forward(
        ctx: Any,
        options: _Options,
        computed: tuple[Tensor, Tensor],
        data: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        output, moments = computed  # (a tensor that is an argument itself would become a view)
        ctx.save_for_backward(data, weight, bias, moments)
        ctx.set_materialize_grads(False)
        ctx.options = options
        # hooks on saved tensors may do anything as they are read
        ctx.may_be_read = not has_hooks_of_the_script()
        ctx.is_watched = False
        return output

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return (None,) * 5
        needed = ctx.needs_input_grad[2:]
        return None, None, *_gradients(ctx, ctx.options, needed, grad, None)


_Node: Any = _BatchNorm._backward_cls
_Node.__name__ = "NativeBatchNormBackward0"  # as a tensor is printed


def _watch(name: str) -> None:
    register = getattr(_Node, name)

    @wraps(register)
    def registering(self: Any, hook: Any) -> Any:
        self.is_watched = True
        return register(self, hook)

    setattr(_Node, name, registering)


for _name in ("register_hook", "register_prehook"):
    _watch(_name)


class _Call(NamedTuple):
    """A call of an activation."""

    function: Callable[[Tensor], Tensor]
    activation: Activation
    in_place: bool
    node: Any
    """The batch norm's node in the graph."""
    hooks: OrderedDict[int, Any] | None
    """The hooks of the batch norm's output, if that is not the activation's too."""


class _ActivatedBatchNorm(Function):
    """An activation of the output of a batch norm, whose gradient goes past that output."""

    @staticmethod
    def forward(ctx: Any, call: _Call, output: Tensor, *saved: Tensor) -> Tensor:
        if call.in_place:
            ctx.mark_dirty(output)
        ctx.output = None if call.in_place else weakref.ref(output)
        ctx.call = call
        result = call.function(output)
        # the result, as torch has it: that a script changes it is an error
        ctx.save_for_backward(*saved, result)
        ctx.set_materialize_grads(False)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        call: _Call = ctx.call
        if grad is None:
            return (None,) * 6
        if (
            call.node.is_watched
            or call.hooks
            or (ctx.output is not None and ctx.output() is not None)
        ):
            return None, _activation_gradient(ctx, grad), None, None, None, None
        needed = ctx.needs_input_grad[2:5]
        return None, None, *_gradients(ctx, call.node.options, needed, grad, call), None


def _gradients(
    ctx: Any, options: _Options, needed: tuple[bool, ...], grad: Tensor, call: _Call | None
) -> Gradients:
    """Return the gradients of input, weight and bias.

    Args:
        ctx: The node that has saved them.
        options: The batch norm's.
        needed: For which of them a gradient is needed.
        grad: Gradient of the output, or of that of the activation.
        call: The activation's call.
    """
    data, weight, bias, moments, *_ = ctx.saved_tensors
    tensors = options.tensors
    if (
        torch.is_grad_enabled()  # by create_graph
        or not tensors.is_eager()
        or not tensors.have_plain_keys([grad])
        or grad.dtype is not torch.float32
    ):
        return _gradients_of_torch(options, (data, weight, bias), needed, grad, call)
    layout = torch.contiguous_format if data.is_contiguous() else FORMATS[data.dim()]
    return options.kernels.backward(
        grad.contiguous(memory_format=layout), data, weight, bias, moments,
        None if call is None else call.activation, needs_input=needed[0],
    )  # fmt: skip


def _gradients_of_torch(
    options: _Options, inputs: Any, needed: tuple[bool, ...], grad: Tensor, call: _Call | None
) -> Gradients:
    """Return the gradients as torch's operators compute them, which can be differentiated."""
    is_differentiable = torch.is_grad_enabled()
    with torch.enable_grad():
        if not is_differentiable:
            inputs = [
                tensor.detach().requires_grad_(is_needed)
                for tensor, is_needed in zip(inputs, needed, strict=True)
            ]
        output = _batch_norm_of_torch(inputs[0], inputs[1], inputs[2], options.eps)
        if call is not None:
            output = call.function(output)
        wanted = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
        grads = iter(torch.autograd.grad(output, wanted, grad, create_graph=is_differentiable))
    input_grad, weight_grad, bias_grad = (
        next(grads) if is_needed else None for is_needed in needed
    )
    return input_grad, weight_grad, bias_grad


def _activation_gradient(ctx: Any, grad: Tensor) -> Tensor:
    """Return the gradient of the batch norm's output, as torch's operators compute it."""
    call: _Call = ctx.call
    data, weight, bias, *_ = ctx.saved_tensors
    is_differentiable = torch.is_grad_enabled()
    with torch.no_grad():
        output = _batch_norm_of_torch(data, weight, bias, call.node.options.eps)
    with torch.enable_grad():
        output.requires_grad_()
        result = call.function(output + 0 if call.in_place else output)
        (output_grad,) = torch.autograd.grad(result, output, grad, create_graph=is_differentiable)
    return output_grad


def _batch_norm_of_torch(data: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return torch.native_batch_norm(data, weight, bias, None, None, True, 0.0, eps)[0]


class BatchNorms(KernelPatches[BatchNormKernels]):
    """Kernels for batch norm, and the patches of torch's functions."""

    def __init__(self) -> None:
        super().__init__("batch norm", BatchNormKernels, is_batch_norm_right)
        self.replace([torch], "batch_norm", self._compute_call)
        nn = torch._C._nn  # where torch.nn.functional has its operators
        for place, name, gradient in (
            (torch, "relu", _relu_gradient), (Tensor, "relu", _relu_gradient),
            (nn, "leaky_relu", _leaky_relu_gradient), (nn, "hardtanh", _hardtanh_gradient),
            (nn, "relu6", _relu6_gradient),
        ):  # fmt: skip
            for in_place in (False, True):
                self._replace_activation(
                    place, f"{name}_" if in_place else name, gradient, in_place=in_place
                )

    def _replace_activation(
        self,
        place: Any,
        name: str,
        gradient: Callable[..., Activation | None],
        *,
        in_place: bool,
    ) -> None:
        original = getattr(place, name)

        def compute(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
            if (
                not args
                or kwargs
                or type(args[0]) is not Tensor
                or type(args[0].grad_fn) is not _Node
            ):
                return None
            activation = gradient(*args[1:])
            if activation is None:
                return None
            return self._activate(original, args, activation, in_place=in_place)

        self.replace([place], name, compute)

    def _compute_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """Return the output; None if it is torch's to compute."""
        if (
            len(args) != NUM_ARGUMENTS
            or kwargs
            or type(args[0]) is not Tensor
            or args[0].dtype is not torch.float32
            or not args[0].is_cpu
            or args[5] is not True
            or args[0].numel() < MIN_ELEMENTS
            or not _is_laid_out(args[0])
        ):
            return None
        return self._compute(*args)

    def _compute(
        self,
        data: Tensor,
        weight: Any,
        bias: Any,
        running_mean: Any,
        running_var: Any,
        _: bool,
        momentum: Any,
        eps: Any,
        __: bool,
    ) -> Tensor | None:
        """Return the output; None if the kernels might not have the effects of torch's operator."""
        if (
            not self.is_on
            or self.problem
            or type(momentum) is not float
            or type(eps) is not float
            or not 1e-12 <= eps <= 1
            or not self._tensors.is_eager()
        ):
            return None
        running = None
        per_channel = [weight, bias]
        if running_mean is not None or running_var is not None:
            running = running_mean, running_var
            per_channel += running
        if not self._tensors.have_plain_keys([data, *per_channel]):
            return None
        num_channels = data.size(1)
        if not all(
            tensor.dtype is torch.float32
            and tensor.shape == (num_channels,)
            and tensor.is_contiguous()
            for tensor in per_channel
        ):
            return None
        kernels = self.load()
        if kernels is None:
            return None
        options = _Options(kernels, self._tensors, eps)
        computed = kernels.forward(data, weight, bias, eps)
        if computed is None:
            return None
        if running is not None:
            kernels.update(running, computed[1], momentum)
        self.num_computed += 1
        apply: Callable[..., Tensor] = _BatchNorm.apply
        return apply(options, computed, data, weight, bias)

    def _activate(
        self,
        original: Callable[..., Tensor],
        args: tuple[Any, ...],
        activation: Activation,
        *,
        in_place: bool,
    ) -> Tensor | None:
        """Call an activation with the output of a batch norm, its first argument.

        Return None if its gradient is torch's to compute.
        """
        output, *options = args
        node: Any = output.grad_fn
        if (
            not node.may_be_read
            or node.is_watched
            or output._version
            or output._backward_hooks is not None
            or not torch.is_grad_enabled()
            or not self._tensors.is_eager()
            or has_hooks_of_the_script()
        ):
            return None
        hooks: OrderedDict[int, Any] | None = None
        if not in_place:  # so that hooks are seen that the script adds from now on
            output._backward_hooks = hooks = OrderedDict()
            node._register_hook_dict(output)
        call = _Call(lambda tensor: original(tensor, *options), activation, in_place, node, hooks)
        apply: Callable[..., Tensor] = _ActivatedBatchNorm.apply
        return apply(call, output, *node.saved_tensors)


def _relu_gradient(*options: Any) -> Activation | None:
    return None if options else Activation(0.0, math.inf, 0.0)


def _leaky_relu_gradient(*options: Any) -> Activation | None:
    if len(options) != 1 or type(options[0]) is not float or not 0 < options[0] < 1:
        return None
    return Activation(0.0, math.inf, options[0])


def _hardtanh_gradient(*options: Any) -> Activation | None:
    if [type(option) for option in options] != [float, float] or not options[0] < options[1]:
        return None
    low, high = options
    return Activation(low, high, 0.0)


def _relu6_gradient(*options: Any) -> Activation | None:
    return None if options else Activation(0.0, 6.0, 0.0)


def _is_laid_out(data: Tensor) -> bool:
    """Return whether the kernels can read an input in its layout, and are faster."""
    if not 3 <= data.dim() <= 5 or data.numel() < MIN_ELEMENTS_PER_THREAD * torch.get_num_threads():
        return False
    if data.is_contiguous():
        return data.numel() >= MIN_PLANE * data.size(0) * data.size(1)
    layout = FORMATS.get(data.dim())
    return (
        layout is not None
        and data.is_contiguous(memory_format=layout)
        and data.numel() >= MIN_ELEMENTS_IN_ROWS
    )
