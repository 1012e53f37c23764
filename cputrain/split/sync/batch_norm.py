"""Batch normalisation over the whole batch, of which every replica has a part.

Replicas meet twice: in the forward with the count, the mean and the variance of their part, in the
backward with the two sums over the gradient that the mean and the variance depend on.
"""

from __future__ import annotations

from functools import wraps

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)

from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.split.execution.context import ReplicaContext

    Own = Callable[..., Any]
    Tensor = torch.Tensor

aten = torch.ops.aten


def replacements() -> list[tuple[Any, str, Callable[[Own], Own]]]:
    """Where, which, and what makes ours of torch's."""
    return [(F, "batch_norm", _functional)]


def _functional(own: Own) -> Own:
    @wraps(own)
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
        part = current_replica()
        if part is None or not training:
            return own(  # type: ignore[no-any-return]
                input, running_mean, running_var, weight, bias, training, momentum, eps
            )
        number = part.next_meeting()
        apply: Any = WholeBatchNorm.apply
        with part.untraced():
            normalised, mean, variance, count = apply(input, weight, bias, eps, part, number)
            if running_mean is not None and running_var is not None:
                with torch.no_grad():
                    running_mean.mul_(1 - momentum).add_(mean, alpha=momentum)
                    unbiased = variance * (count / max(count - 1, 1))
                    running_var.mul_(1 - momentum).add_(unbiased, alpha=momentum)
        if part.trace is not None:
            part.trace.batch_norm(input, normalised, (momentum, eps))
        return normalised  # type: ignore[no-any-return]

    return batch_norm


class WholeBatchNorm(torch.autograd.Function):
    """A part, normalised by what the whole has."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,  # noqa: A002  (torch's name)
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        part: ReplicaContext,
        number: int,
    ) -> tuple[Tensor, Tensor, Tensor, int]:
        own_mean, own_variance = _statistics(input)
        count = input.numel() // input.size(1)
        everybody = part.sums(f"batch norm {number + 1}", count, own_mean, own_variance)
        total = sum(one for one, _, _ in everybody)
        if total < 2 and part.trace is None:
            raise ValueError(
                "Expected more than 1 value per channel when training, "
                f"got input size {input.size()}"
            )
        counts = own_mean.new_tensor([one for one, _, _ in everybody]).unsqueeze(1)
        means = torch.stack([one for _, one, _ in everybody])
        variances = torch.stack([one for _, _, one in everybody])
        mean = (counts * means).sum(0) / total
        variance = (counts * (variances + (means - mean) ** 2)).sum(0) / total
        # torch takes them in the type of the weights
        kind = mean.dtype if weight is None else weight.dtype
        mean, variance = mean.to(kind), variance.to(kind)
        ctx.save_for_backward(input, weight, mean, variance)
        ctx.eps, ctx.part, ctx.number, ctx.total = eps, part, number, total
        ctx.mark_non_differentiable(mean, variance)
        out = torch.batch_norm(input, weight, bias, mean, variance, False, 0.0, eps, False)
        return out, mean, variance, total

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: object) -> tuple[Any, ...]:
        input_, weight, mean, variance = ctx.saved_tensors
        part: ReplicaContext = ctx.part
        ones = torch.ones_like(mean) if weight is None else weight
        inverse = torch.rsqrt(variance + ctx.eps)
        scaled, of_weight, of_bias = aten.native_batch_norm_backward(
            gradient, input_, ones, mean, variance, mean, inverse, False, ctx.eps, [True] * 3
        )
        everybody = part.sums(f"batch norm {ctx.number + 1} on its way back", of_weight, of_bias)
        all_of_weight = torch.stack([one for one, _ in everybody]).sum(0) / ctx.total
        all_of_bias = torch.stack([one for _, one in everybody]).sum(0) / ctx.total
        # scaled - scale (all_of_bias + normalised all_of_weight), as one line a x + b
        scale = inverse if weight is None else inverse * weight
        slope = scale * inverse * all_of_weight
        level = scale * all_of_bias - slope * mean
        zero, one = torch.zeros_like(mean), torch.ones_like(mean)
        line = torch.batch_norm(input_, slope, level, zero, one, False, 0.0, 0.0, False)
        wanted = ctx.needs_input_grad
        return (
            scaled.sub_(line),
            of_weight if wanted[1] else None,
            of_bias if wanted[2] else None,
            *(None, None, None),
        )


def _statistics(part: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of each channel; in float32 at least, as torch adds them up."""
    if part.dtype not in (torch.bfloat16, torch.float16):
        return torch.batch_norm_update_stats(part, None, None, 0.0)
    # torch gives them in the type of running ones
    zeros = torch.zeros(part.size(1), device=part.device)
    return torch.batch_norm_update_stats(part, zeros, zeros + 1, 0.0)
