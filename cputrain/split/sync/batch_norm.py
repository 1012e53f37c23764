"""Batch normalization with statistics of the whole batch, of which each replica has a shard.

Replicas all-gather twice: in the forward the count, mean and variance of their shard, in the
backward the two sums over the gradient that come from the mean and the variance.
"""

from __future__ import annotations

from functools import partial, wraps
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)

from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.split.execution.context import ReplicaContext

    Function = Callable[..., Any]
    Tensor = torch.Tensor

aten = torch.ops.aten


def replacements() -> list[tuple[Any, str, Callable[[Function], Function]]]:
    """Return (owner, attribute name, function that wraps torch's) for each patched function."""
    return [(F, "batch_norm", _functional)]


def _functional(original: Function) -> Function:
    @wraps(original)
    def batch_norm(
        input: Tensor,  # noqa: A002  (torch's name)
        running_mean: Tensor | None,
        running_var: Tensor | None,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        training: bool = False,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Tensor:
        context = current_replica()
        if context is None or not training:
            return original(  # type: ignore[no-any-return]
                input, running_mean, running_var, weight, bias, training, momentum, eps
            )
        index = context.next_rendezvous()
        apply: Any = WholeBatchNorm.apply
        with context.untraced():
            normalised, mean, variance, count = apply(input, weight, bias, eps, context, index)
            # (replicas have the model's buffers or copies of them: those of one device need one)
            is_needed = context.number == 0 or context.is_multi_device or context.trace is not None
            if is_needed and running_mean is not None and running_var is not None:
                with torch.no_grad():
                    running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
                    unbiased = variance * (count / max(count - 1, 1))
                    running_var.mul_(1 - momentum).add_(unbiased, alpha=momentum)
        if context.trace is not None:
            context.trace.batch_norm(input, normalised, (momentum, eps))
        return normalised  # type: ignore[no-any-return]

    return batch_norm


class WholeBatchNorm(torch.autograd.Function):
    """Normalize a shard by the statistics of the whole batch."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,  # noqa: A002  (torch's name)
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        context: ReplicaContext,
        index: int,
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        statistics = _statistics(input)
        count = input.numel() // input.size(1)
        whole: _Whole = context.all_reduce(
            f"batch norm {index + 1}", partial(_whole_of, weight, eps), count, *statistics
        )
        if whole.total < 2 and context.trace is None:
            raise ValueError(
                "Expected more than 1 value per channel when training, "
                f"got input size {input.size()}"
            )
        ctx.save_for_backward(input, weight)
        ctx.eps, ctx.context, ctx.index, ctx.whole = eps, context, index, whole
        mean, variance = whole.mean, whole.variance
        out = torch.batch_norm(input, weight, bias, mean, variance, False, 0.0, eps, False)
        # (each replica has a tensor of its own, which becomes an output)
        mean, variance = mean.detach(), variance.detach()
        ctx.mark_non_differentiable(mean, variance)
        return out, mean, variance, whole.total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: object) -> tuple[Any, ...]:
        input_, weight = ctx.saved_tensors
        context: ReplicaContext = ctx.context
        whole: _Whole = ctx.whole
        scaled, grad_weight, grad_bias = aten.native_batch_norm_backward(
            gradient, input_, whole.ones if weight is None else weight, whole.mean, whole.variance,
            whole.mean, whole.inverse, False, ctx.eps, [True] * 3,
        )  # fmt: skip
        slope, offset = context.all_reduce(
            f"batch norm {ctx.index + 1} on its way back", partial(_correction, whole, weight),
            grad_weight, grad_bias,
        )  # fmt: skip
        correction = torch.batch_norm(
            input_, slope, offset, whole.zeros, whole.ones, False, 0.0, 0.0, False
        )
        needs_grad = ctx.needs_input_grad
        return (
            scaled.sub_(correction),
            grad_weight if needs_grad[1] else None,
            grad_bias if needs_grad[2] else None,
            *(None, None, None),
        )


class _Whole(NamedTuple):
    """Statistics of all shards."""

    total: int
    """Values of each channel."""

    mean: Tensor
    variance: Tensor
    inverse: Tensor
    """Of the standard deviation."""

    zeros: Tensor
    ones: Tensor


def _whole_of(
    weight: Tensor | None, eps: float, gathered: list[tuple[int, Tensor, Tensor]]
) -> _Whole:
    total = sum(count for count, _, _ in gathered)
    means = torch.stack([mean for _, mean, _ in gathered])
    variances = torch.stack([variance for _, _, variance in gathered])
    counts = means.new_tensor([count for count, _, _ in gathered]).unsqueeze(1)
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
    # torch expects them in the dtype of the weight
    dtype = mean.dtype if weight is None else weight.dtype
    mean, variance = mean.to(dtype), variance.to(dtype)
    inverse = torch.rsqrt(variance + eps)
    return _Whole(total, mean, variance, inverse, torch.zeros_like(mean), torch.ones_like(mean))


def _correction(
    whole: _Whole, weight: Tensor | None, gathered: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    """Return by which line of its input a shard's gradient differs from that of constants."""
    mean_grad_weight = torch.stack([part for part, _ in gathered]).sum(0) / whole.total
    mean_grad_bias = torch.stack([part for _, part in gathered]).sum(0) / whole.total
    # scaled - scale * (mean_grad_bias + normalised * mean_grad_weight), as slope * x + offset
    scale = whole.inverse if weight is None else whole.inverse * weight
    slope = scale * whole.inverse * mean_grad_weight
    return slope, scale * mean_grad_bias - slope * whole.mean


def _statistics(shard: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and variance of each channel, in float32 at least, as torch accumulates them."""
    if shard.dtype not in (torch.bfloat16, torch.float16):
        return torch.batch_norm_update_stats(shard, None, None, 0.0)
    # torch returns them in the dtype of the running statistics
    zeros = torch.zeros(shard.size(1), device=shard.device)
    return torch.batch_norm_update_stats(shard, zeros, zeros + 1, 0.0)
