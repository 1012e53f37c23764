"""Loss functions inside a model: each replica returns the loss of the whole batch.

A mean is the sum over all samples divided by their total weight. Replicas all-gather both, and the
backward of each gives the gradients of its own samples.
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

    Function = Callable[..., Any]
    Weigh = Callable[[dict[str, Any]], float]


def replacements() -> list[tuple[Any, str, Callable[[Function], Function]]]:
    """Return (owner, attribute name, function that wraps torch's) for each patched function."""
    names = (
        "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits", "kl_div",
    )  # fmt: skip
    patches: list[tuple[Any, str, Callable[[Function], Function]]] = [
        (F, name, _elements) for name in names
    ]
    patches += [(F, name, _classes) for name in ("cross_entropy", "nll_loss")]
    return patches


def _elements(original: Function) -> Function:
    return _loss(original, _num_elements)


def _classes(original: Function) -> Function:
    return _loss(original, _weight_of_classes)


def _loss(original: Function, weigh: Weigh) -> Function:
    signature = inspect.signature(original)

    @wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        context = current_replica()
        if context is None:
            return original(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        reduction = arguments["reduction"]
        if reduction not in ("mean", "sum", "batchmean") or any(
            arguments.get(name) is not None for name in ("size_average", "reduce")
        ):
            return original(*args, **kwargs)
        arguments["reduction"] = "sum"
        index = context.next_rendezvous()
        apply: Any = WholeLoss.apply
        with context.untraced():
            weight = weigh(arguments) if reduction == "mean" else float(len(arguments["input"]))
            total = original(*bound.args, **bound.kwargs)
            whole_loss = apply(total, weight, context, index, reduction != "sum")
        if context.trace is not None:
            tensors = [value for value in arguments.values() if isinstance(value, torch.Tensor)]
            context.trace.loss(original.__name__, tensors, whole_loss)
        return whole_loss

    return loss


class WholeLoss(torch.autograd.Function):
    """Loss of the whole batch, as a function of one replica's samples."""

    @staticmethod
    def forward(
        ctx: Any,
        total: torch.Tensor,
        weight: float,
        context: ReplicaContext,
        index: int,
        is_mean: bool,
    ) -> torch.Tensor:
        whole_loss: torch.Tensor
        whole_loss, whole_weight = context.all_reduce(
            f"loss {index + 1}", _whole, total.detach(), weight
        )
        ctx.weight = whole_weight if is_mean else 1.0
        return whole_loss / ctx.weight if is_mean else whole_loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        return gradient / ctx.weight, None, None, None, None


def _whole(gathered: list[tuple[torch.Tensor, float]]) -> tuple[torch.Tensor, float]:
    return torch.stack([total for total, _ in gathered]).sum(0), sum(part for _, part in gathered)


def _num_elements(arguments: dict[str, Any]) -> float:
    shapes = [arguments[name].shape for name in ("input", "target")]
    shape: torch.Size = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
    return float(shape.numel())


def _weight_of_classes(arguments: dict[str, Any]) -> float:
    scores, target, weight = arguments["input"], arguments["target"], arguments["weight"]
    if target.is_floating_point():  # probabilities of classes
        return float(scores.numel() // scores.size(1 if scores.dim() > 1 else 0))
    valid = target != arguments["ignore_index"]
    if weight is None:
        return float(valid.sum())
    return float(weight[target[valid]].sum())
