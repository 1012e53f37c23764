"""Operators that set every element against others of its row or channel: made of reductions."""

from __future__ import annotations

import torch

from cputrain.opencl.table import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from torch import Tensor

aten = torch.ops.aten


@kernel(aten._softmax.default)
def softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    """Of each row, parts of one."""
    if half_to_float or not self.is_floating_point() or not self.numel() or not self.dim():
        return NotImplemented
    grown = (self - self.amax(dim, keepdim=True)).exp()
    return grown / grown.sum(dim, keepdim=True)


@kernel(aten._softmax_backward_data.default)
def softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """Its gradient."""
    if input_dtype != output.dtype or not output.numel() or not output.dim():
        return NotImplemented
    return output * (grad_output - (grad_output * output).sum(dim, keepdim=True))


@kernel(aten._log_softmax.default)
def log_softmax(self: Tensor, dim: int, half_to_float: bool) -> Any:
    """Their logarithms."""
    if half_to_float or not self.is_floating_point() or not self.numel() or not self.dim():
        return NotImplemented
    level = self - self.amax(dim, keepdim=True)
    return level - level.exp().sum(dim, keepdim=True).log()


@kernel(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    grad_output: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype
) -> Any:
    """Its gradient."""
    if input_dtype != output.dtype or not output.numel() or not output.dim():
        return NotImplemented
    return grad_output - output.exp() * grad_output.sum(dim, keepdim=True)


@kernel(aten.native_layer_norm.default)
def layer_norm(
    input: Tensor,  # noqa: A002  (torch's name)
    normalized_shape: Sequence[int],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
) -> Any:
    """Normalised; and means and inverse deviations, for the backward."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    if not input.numel() or list(input.shape[dims[0] :]) != list(normalized_shape):
        return NotImplemented
    mean = input.mean(dims, keepdim=True)
    apart = input - mean
    inverse = ((apart * apart).mean(dims, keepdim=True) + eps).rsqrt()
    out = apart * inverse
    if weight is not None:
        out = out * weight
    return out if bias is None else out + bias, mean, inverse


@kernel(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    grad_out: Tensor,
    input: Tensor,  # noqa: A002
    normalized_shape: Sequence[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of the input, the weight and the bias."""
    dims = list(range(input.dim() - len(normalized_shape), input.dim()))
    if not input.numel():
        return NotImplemented
    others = list(range(dims[0]))
    normal = (input - mean) * rstd
    scaled = grad_out if weight is None else grad_out * weight
    of_input = None
    if output_mask[0]:
        along = (scaled * normal).mean(dims, keepdim=True)
        of_input = rstd * (scaled - scaled.mean(dims, keepdim=True) - normal * along)
    of_weight = (grad_out * normal) if output_mask[1] and weight is not None else None
    of_bias = grad_out if output_mask[2] and bias is not None else None
    return of_input, *(
        one if one is None or not others else one.sum(others) for one in (of_weight, of_bias)
    )


@kernel(aten.native_batch_norm.default)
def batch_norm(
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    """Normalised; and means and inverse deviations of the channels, for the backward."""
    few = input.numel() == input.size(1) if input.numel() else True
    if few or (not training and (running_mean is None or running_var is None)):
        return NotImplemented
    dims, shape = _channels(input)
    if training:
        mean = input.mean(dims)
        apart = input - mean.view(shape)
        variance = (apart * apart).mean(dims)
        inverse = (variance + eps).rsqrt()
        if running_mean is not None and running_var is not None:
            count = input.numel() // input.size(1)
            running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
            running_var.mul_(1 - momentum).add_(variance, alpha=momentum * count / (count - 1))
        kept = (mean, inverse)
    else:
        assert running_mean is not None
        assert running_var is not None
        apart, inverse = input - running_mean.view(shape), (running_var + eps).rsqrt()
        kept = (input.new_empty(0), input.new_empty(0))
    scale = inverse if weight is None else inverse * weight
    out = apart * scale.view(shape)
    return out if bias is None else out + bias.view(shape), *kept


@kernel(aten.native_batch_norm_backward.default)
def batch_norm_backward(
    grad_out: Tensor,
    input: Tensor,  # noqa: A002
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> Any:
    """Gradients of the input, the weight and the bias."""
    dims, shape = _channels(input)
    if train:
        mean, inverse = save_mean, save_invstd
    else:
        mean = running_mean
        inverse = None if running_var is None else (running_var + eps).rsqrt()
    if not input.numel() or mean is None or inverse is None:
        return NotImplemented
    normal = (input - mean.view(shape)) * inverse.view(shape)
    of_bias = grad_out.sum(dims)
    of_weight = (grad_out * normal).sum(dims)
    of_input = None
    if output_mask[0]:
        scale = inverse if weight is None else inverse * weight
        rest = grad_out
        if train:
            count = input.numel() // input.size(1)
            level, slope = (of_bias / count).view(shape), (of_weight / count).view(shape)
            rest = grad_out - level - normal * slope
        of_input = rest * scale.view(shape)
    return of_input, of_weight if output_mask[1] else None, of_bias if output_mask[2] else None


def _channels(input: Tensor) -> tuple[list[int], list[int]]:  # noqa: A002
    """The dimensions that a channel has elements in, and the shape of one number a channel."""
    dims = [dim for dim in range(input.dim()) if dim != 1]
    return dims, [-1 if dim == 1 else 1 for dim in range(input.dim())]
