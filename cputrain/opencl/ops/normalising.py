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
