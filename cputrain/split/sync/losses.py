"""Losses inside a model: one number of the whole batch, of which every replica has a part.

A mean is the sum over all samples divided by what they weigh together. Replicas meet with both, so
each returns the loss of the whole batch, and its backward gives the gradients of its own samples.
"""

from __future__ import annotations

import inspect
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
    Weigh = Callable[[dict[str, Any]], float]


def replacements() -> list[tuple[Any, str, Callable[[Own], Own]]]:
    """Where, which, and what makes ours of torch's."""
    names = (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div",
    )  # fmt: skip
    found: list[tuple[Any, str, Callable[[Own], Own]]] = [(F, name, _elements) for name in names]
    found += [(F, name, _classes) for name in ("cross_entropy", "nll_loss")]
    return found


def _elements(own: Own) -> Own:
    return _loss(own, _num_elements)


def _classes(own: Own) -> Own:
    return _loss(own, _weight_of_classes)


def _loss(own: Own, weigh: Weigh) -> Own:
    signature = inspect.signature(own)

    @wraps(own)
    def loss(*args: Any, **options: Any) -> Any:
        part = current_replica()
        if part is None:
            return own(*args, **options)
        given = signature.bind(*args, **options)
        given.apply_defaults()
        arguments = given.arguments
        reduction = arguments["reduction"]
        if reduction not in ("mean", "sum", "batchmean") or any(
            arguments.get(name) is not None for name in ("size_average", "reduce")
        ):
            return own(*args, **options)
        arguments["reduction"] = "sum"
        number = part.next_meeting()
        apply: Any = WholeLoss.apply
        with part.untraced():
            weight = weigh(arguments) if reduction == "mean" else float(len(arguments["input"]))
            total = own(*given.args, **given.kwargs)
            whole = apply(total, weight, part, number, reduction != "sum")
        if part.trace is not None:
            tensors = [one for one in arguments.values() if isinstance(one, torch.Tensor)]
            part.trace.loss(own.__name__, tensors, whole)
        return whole

    return loss


class WholeLoss(torch.autograd.Function):
    """The loss of all samples, as a function of those of one replica."""

    @staticmethod
    def forward(
        ctx: Any,
        total: torch.Tensor,
        weight: float,
        part: ReplicaContext,
        number: int,
        is_mean: bool,
    ) -> torch.Tensor:
        everybody = part.sums(f"loss {number + 1}", total.detach(), weight)
        whole = torch.stack([one for one, _ in everybody]).sum(0)
        ctx.weight = sum(one for _, one in everybody) if is_mean else 1.0
        return whole / ctx.weight if is_mean else whole

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient / ctx.weight, None, None, None, None


def _num_elements(arguments: dict[str, Any]) -> float:
    shapes = [arguments[name].shape for name in ("input", "target")]
    whole: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return float(whole.numel())


def _weight_of_classes(arguments: dict[str, Any]) -> float:
    scores, target, weight = arguments["input"], arguments["target"], arguments["weight"]
    if target.is_floating_point():  # probabilities of classes
        return float(scores.numel() // scores.size(1 if scores.dim() > 1 else 0))
    valid = target != arguments["ignore_index"]
    if weight is None:
        return float(valid.sum())
    return float(weight[target[valid]].sum())
