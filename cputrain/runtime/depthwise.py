"""Compute the gradient of the weight of depthwise convolutions by kernels of cputrain.

Forward, and the gradients of input and bias, are left to torch. So are filters of up to three rows
and columns, for which torch has kernels of its own.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function

from cputrain.kernels.depthwise import DepthwiseKernels, DepthwiseShape
from cputrain.kernels.proof import is_depthwise_right
from cputrain.runtime.kernel_patches import KernelPatches, is_in_memory_order

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.runtime.plain_tensors import PlainTensors

    Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]

MIN_PRODUCTS, MIN_PRODUCTS_OF_THREAD = 1 << 20, 1 << 18
"""Fewest products of input and filter, and of them for each thread, for which the kernels are
faster; measured in docs/benchmarks."""

MIN_FILTER = 4
"""Fewest rows or columns of a filter for which they are."""

MAX_FILTER = 2048
"""Most elements of a filter: their sums are on the stack of a thread."""

GROUPS_POSITION = 6
"""Position of the number of groups among the arguments of a convolution."""


class _Convolution(NamedTuple):
    """The arguments of a convolution, as torch.nn.functional has them."""

    input: Tensor
    weight: Tensor
    bias: Tensor | None = None
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1
    groups: int = 1


class _LayerOptions(NamedTuple):
    """What a convolution is, beside its tensors."""

    original: Callable[..., Tensor]
    arguments: tuple[Any, ...]
    shape: DepthwiseShape
    kernels: DepthwiseKernels
    tensors: PlainTensors


class _DepthwiseConvolution(Function):
    """A depthwise convolution whose weight's gradient is computed by the kernels."""

    @staticmethod
    def forward(
        ctx: Any, options: _LayerOptions, data: Tensor, weight: Tensor, bias: Tensor | None
    ) -> Tensor:
        ctx.save_for_backward(data, weight)
        ctx.bias = bias  # (it may change: no gradient depends on its numbers)
        ctx.set_materialize_grads(False)
        ctx.options = options
        return options.original(data, weight, bias, *options.arguments)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None) -> Any:
        if grad is None:
            return (None,) * 4
        options: _LayerOptions = ctx.options
        data, weight = ctx.saved_tensors
        bias = ctx.bias
        needed = ctx.needs_input_grad[1:]
        if (
            not torch.is_grad_enabled()  # by create_graph
            and needed[1]
            and options.tensors.is_eager()
            and options.tensors.have_plain_keys([data, weight, grad])
            and grad.dtype is torch.float32
        ):
            weight_grad = _weight_grad(options, data, grad)
            if weight_grad is not None:
                # (torch computes the weight's gradient as well where it is asked for the bias's)
                bias_grad = grad.sum([0, *range(2, grad.dim())]) if needed[2] else None
                data_grad, _, _ = _gradients(
                    options, (data, weight, bias), (needed[0], False, False), grad
                )
                return None, data_grad, weight_grad, bias_grad
        return None, *_gradients(options, (data, weight, bias), needed, grad)


_Node: Any = _DepthwiseConvolution._backward_cls
_Node.__name__ = "ConvolutionBackward0"  # as a tensor is printed


def _weight_grad(options: _LayerOptions, data: Tensor, grad: Tensor) -> Tensor | None:
    is_one_dimensional = data.dim() == 3
    if is_one_dimensional:
        data, grad = data.unsqueeze(2), grad.unsqueeze(2)
    layout = torch.contiguous_format if data.is_contiguous() else torch.channels_last
    weight_grad = options.kernels.weight_grad(
        data, grad.contiguous(memory_format=layout), options.shape
    )
    return weight_grad.squeeze(2) if weight_grad is not None and is_one_dimensional else weight_grad


def _gradients(
    options: _LayerOptions,
    inputs: tuple[Tensor, Tensor, Tensor | None],
    needed: tuple[bool, ...],
    grad: Tensor,
) -> Gradients:
    """Return the gradients of input, weight and bias as torch's operators compute them.

    Args:
        options: The convolution's.
        inputs: Input, weight and bias.
        needed: For which of them a gradient is needed.
        grad: Gradient of the output.
    """
    if not any(needed):
        return None, None, None
    if not torch.is_grad_enabled():
        data, weight, bias = inputs
        stride, padding, dilation, groups = options.arguments
        dims = data.dim() - 2
        gradients: Gradients = torch.ops.aten.convolution_backward(
            grad, data, weight, None if bias is None else list(bias.shape),
            _sequence(stride, dims), _sequence(padding, dims), _sequence(dilation, dims),
            False, [0] * dims, groups, list(needed),
        )  # fmt: skip
        return gradients
    output = options.original(*inputs, *options.arguments)
    wanted = [tensor for tensor, is_needed in zip(inputs, needed, strict=True) if is_needed]
    computed = iter(torch.autograd.grad(output, wanted, grad, create_graph=True))  # type: ignore[arg-type]
    data_grad, weight_grad, bias_grad = (
        next(computed) if is_needed else None for is_needed in needed
    )
    return data_grad, weight_grad, bias_grad


class DepthwiseConvolutions(KernelPatches[DepthwiseKernels]):
    """Kernels for depthwise convolutions, and the patches of torch's functions."""

    def __init__(self) -> None:
        super().__init__("depthwise gradients", DepthwiseKernels, is_depthwise_right)
        for name in ("conv1d", "conv2d"):
            original = getattr(torch, name)
            self.replace((torch, torch.nn.functional), name, partial(self._compute, original))

    def _compute(
        self, original: Callable[..., Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor | None:
        """Return the output; None if the kernels might not have the effects of torch's operator."""
        if not _is_grouped(args, kwargs):
            return None
        try:
            call = _Convolution(*args, **kwargs)
        except TypeError:  # which torch has words for
            return None
        data, weight, bias = call.input, call.weight, call.bias
        tensors = [data, weight] if bias is None else [data, weight, bias]
        if (
            not self.is_on
            or self.problem
            or not torch.is_grad_enabled()
            or not all(isinstance(tensor, Tensor) for tensor in tensors)
            or not weight.requires_grad
            or not self._tensors.is_eager()
            or not self._tensors.have_plain_keys(tensors)
            or any(tensor.dtype is not torch.float32 for tensor in tensors)
            or torch.is_autocast_enabled("cpu")
            or not _is_depthwise(call)
        ):
            return None
        call = call._replace(padding=_padding_of(call))
        shape = _shape_of(call)
        if shape is None or data.numel() * math.prod(shape.kernel_size) < max(
            MIN_PRODUCTS, MIN_PRODUCTS_OF_THREAD * torch.get_num_threads()
        ):
            return None
        kernels = self.load()
        if kernels is None:
            return None
        arguments = (call.stride, call.padding, call.dilation, call.groups)
        options = _LayerOptions(original, arguments, shape, kernels, self._tensors)
        apply: Callable[..., Tensor] = _DepthwiseConvolution.apply
        output = apply(options, data, weight, bias)
        self.num_computed += 1
        return output


def _is_grouped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    groups = args[GROUPS_POSITION] if len(args) > GROUPS_POSITION else kwargs.get("groups")
    return type(groups) is int and groups > 1


def _is_depthwise(call: _Convolution) -> bool:
    """Return whether each channel of a batch in a known memory format has one filter."""
    data, weight = call.input, call.weight
    return (
        data.dim() == weight.dim()
        and data.numel() > 0
        and weight.size(1) == 1
        and weight.size(0) == data.size(1) == call.groups
        and is_in_memory_order(data)
        and max(weight.shape[2:]) >= MIN_FILTER
        and weight[0].numel() <= MAX_FILTER
    )


def _padding_of(call: _Convolution) -> Any:
    """Return the padding, in numbers where its name means the same before and behind."""
    if call.padding == "valid":
        return 0
    if call.padding != "same":
        return call.padding
    dims = call.input.dim() - 2
    both = [
        gap * (rows - 1)
        for gap, rows in zip(_sequence(call.dilation, dims), call.weight.shape[2:], strict=False)
    ]
    is_even = all(each % 2 == 0 for each in both)
    has_stride = any(each != 1 for each in _sequence(call.stride, dims))
    return "same" if has_stride or not is_even else [each // 2 for each in both]


def _shape_of(call: _Convolution) -> DepthwiseShape | None:
    """Return the shape in two dimensions; None if torch would raise an error, or pads by name."""
    dims = call.input.dim() - 2
    stride, padding, dilation = (
        _sequence(value, dims) for value in (call.stride, call.padding, call.dilation)
    )
    if not (stride and padding and dilation) or min(stride) < 1 or min(dilation) < 1:
        return None
    kernel_size = tuple(call.weight.shape[2:])
    for size, rows, before, gap in zip(
        call.input.shape[2:], kernel_size, padding, dilation, strict=True
    ):
        if before < 0 or size + 2 * before < gap * (rows - 1) + 1:
            return None
    return DepthwiseShape(*(
        (absent, *values) if dims == 1 else (values[0], values[1])
        for values, absent in ((kernel_size, 1), (stride, 1), (padding, 0), (dilation, 1))
    ))  # fmt: skip


def _sequence(value: Any, dims: int) -> list[int]:
    """Return a number for each dimension; [] if a value is none of those that torch accepts."""
    values = [value] if type(value) is int else list(value) if type(value) in {tuple, list} else []
    if len(values) == 1:
        values *= dims
    return values if len(values) == dims and all(type(each) is int for each in values) else []
