"""Torch's random functions in replicas' threads: they return slices of the whole batch's draw.

In other threads they call torch's function, after a check of which thread it is.
"""

from __future__ import annotations

import math
from functools import wraps

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)

from cputrain.errors import PartsDiffer
from cputrain.runtime.replaced_builtin import ReplacedBuiltin
from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.split.execution.context import ReplicaContext

    Function = Callable[..., Any]

FUSED = ("cuda", "xpu")
"""Device types whose dropout kernel draws by itself, at offsets of its own."""

IN_PLACE = (
    "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_",
)  # fmt: skip


def replacements() -> list[tuple[Any, str, Callable[[Function], Function]]]:
    """Return (owner, attribute name, function that wraps torch's) for each patched function."""
    patches: list[tuple[Any, str, Callable[[Function], Function]]] = [
        (torch, "rand", _size_first),
        (torch, "randn", _size_first),
        (torch, "randint", _size_last),
        (torch, "normal", _normal),
        (torch, "bernoulli", _bernoulli),
        (torch.Tensor, "bernoulli", _bernoulli),
        (torch.Tensor, "bernoulli_", _bernoulli_in_place),
        (torch, "dropout", _dropout),
        (F, "dropout", _dropout),
        (F, "scaled_dot_product_attention", _attention),
    ]
    patches += [(torch, name, _like) for name in ("rand_like", "randn_like", "randint_like")]
    patches += [(torch.Tensor, name, _fill_in_place) for name in IN_PLACE]
    patches += [(F, name, _feature_dropout) for name in ("dropout1d", "dropout2d", "dropout3d")]
    for owner in (torch, torch.random, torch.cuda, torch.xpu):
        patches += [(owner, "get_rng_state", _get_state), (owner, "set_rng_state", _set_state)]
    return patches


def _in_replica(
    make: Callable[[Function, ReplicaContext], Function],
) -> Callable[[Function], Function]:
    """Wrap a function: patched where a replica draws from the default generator, else torch's."""

    def wrap(original: Function) -> Function:
        @wraps(original)
        def patched(*args: Any, **kwargs: Any) -> Any:
            context = current_replica()
            if context is None or kwargs.get("generator") is not None:
                return original(*args, **kwargs)
            return make(original, context)(*args, **kwargs)

        return patched

    return wrap


def draw_shard(
    context: ReplicaContext,
    like: torch.Tensor,
    fill: Callable[[torch.Tensor], Any],
    *constants: Any,
) -> torch.Tensor:
    """Return this shard's slice of a tensor that `fill` fills for the whole batch.

    It is filled in the shard's memory order. `constants` identify the draw and its arguments in a
    proof; they do not depend on the batch size.
    """

    def draw_whole(shape: torch.Size, order: tuple[int, ...], device: torch.device) -> torch.Tensor:
        empty = torch.empty([shape[dim] for dim in order], dtype=like.dtype, device=device)
        empty = empty.permute([order.index(dim) for dim in range(len(order))])
        with torch.no_grad():
            fill(empty)
        return empty

    with context.untraced():
        slice_ = context.draws.take(context, like.shape, order_of(like), like.device, draw_whole)
    if context.trace is not None:
        context.trace.drawn(slice_, like, constants)
    return slice_


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions in memory order, the outermost first."""
    strides, order = tensor.stride(), list(range(tensor.dim()))
    if all(strides):  # of dimensions with equal strides, that of size 1 is the inner one
        order.sort(key=lambda dim: (-strides[dim], tensor.shape[dim] == 1))
    return tuple(order)


def contiguous(
    context: ReplicaContext,
    shape: torch.Size,
    kwargs: dict[str, Any],
    make: Callable[..., Any],
    *constants: Any,
) -> Any:
    """Return this shard's slice of a tensor that `make` creates for the whole batch."""
    order = tuple(range(len(shape)))
    with context.untraced():
        device = torch.empty(0, device=kwargs.get("device")).device
        slice_ = context.draws.take(
            context, shape, order, device,
            lambda full_shape, _, draw_device: make(full_shape, {**kwargs, "device": draw_device}),
        )  # fmt: skip
    if context.trace is not None:
        context.trace.drawn(slice_, None, (constants, sorted(kwargs.items(), key=str)))
    return slice_


@_in_replica
def _fill_in_place(original: Function, context: ReplicaContext) -> Function:
    def patched(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.copy_(
            draw_shard(
                context,
                self,
                lambda empty: original(empty, *args, **kwargs),
                original.__name__,
                args,
                kwargs,
            )
        )

    return patched


@_in_replica
def _like(original: Function, context: ReplicaContext) -> Function:
    def patched(like: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        wants_gradient = kwargs.pop("requires_grad", False)
        template = torch.empty_like(
            like,
            dtype=kwargs.get("dtype"),
            memory_format=kwargs.pop("memory_format", None) or torch.preserve_format,
        )
        slice_ = draw_shard(
            context, template, lambda empty: empty.copy_(original(empty, *args, **kwargs)),
            original.__name__, args, kwargs,
        )  # fmt: skip
        return slice_.requires_grad_(wants_gradient)

    return patched


@_in_replica
def _size_first(original: Function, context: ReplicaContext) -> Function:
    def patched(*args: Any, **kwargs: Any) -> Any:
        with context.untraced():
            shape = original(*args, **{**kwargs, "device": "meta"}).shape
        kwargs.pop("size", None)
        return contiguous(
            context,
            shape,
            kwargs,
            lambda full_shape, full_kwargs: original(full_shape, **full_kwargs),
            original.__name__,
        )

    return patched


@_in_replica
def _size_last(original: Function, context: ReplicaContext) -> Function:
    def patched(*args: Any, **kwargs: Any) -> Any:
        with context.untraced():
            shape = original(*args, **{**kwargs, "device": "meta"}).shape
        if "size" not in kwargs:
            args = args[:-1]
        other_kwargs = {name: value for name, value in kwargs.items() if name != "size"}
        return contiguous(
            context, shape, other_kwargs,
            lambda full_shape, full_kwargs: original(*args, **{**full_kwargs, "size": full_shape}),
            original.__name__, args,
        )  # fmt: skip

    return patched


@_in_replica
def _normal(original: Function, context: ReplicaContext) -> Function:
    def patched(mean: Any, std: Any = 1.0, *args: Any, **kwargs: Any) -> Any:
        tensors = [value for value in (mean, std) if isinstance(value, torch.Tensor)]
        if not tensors:
            return _size_last(original)(mean, std, *args, **kwargs)
        template = torch.broadcast_tensors(*tensors)[0]  # type: ignore[no-untyped-call]
        empty = torch.empty(template.shape, dtype=template.dtype, device=template.device)
        return draw_shard(context, empty, lambda tensor: original_normal(tensor)) * std + mean

    original_normal = _original_of(torch.Tensor, "normal_")
    return patched


@_in_replica
def _bernoulli(_original: Function, context: ReplicaContext) -> Function:
    def patched(probability: torch.Tensor, p: float | None = None, **_kwargs: Any) -> Any:
        if p is None:
            return _draw_bernoulli(context, probability, probability)
        return torch.empty_like(probability).bernoulli_(p)

    return patched


@_in_replica
def _bernoulli_in_place(original: Function, context: ReplicaContext) -> Function:
    def patched(self: torch.Tensor, p: Any = 0.5, **_kwargs: Any) -> Any:
        if isinstance(p, torch.Tensor):
            return self.copy_(_draw_bernoulli(context, self, p.expand_as(self)))
        return self.copy_(
            draw_shard(context, self, lambda empty: original(empty, p), original.__name__, p)
        )

    return patched


def _draw_bernoulli(
    context: ReplicaContext, like: torch.Tensor, probability: torch.Tensor
) -> torch.Tensor:
    """Return 1 with the given probabilities, else 0; like torch, by one uniform number each."""
    uniform = _original_of(torch.Tensor, "uniform_")
    uniform_draw = draw_shard(context, torch.empty_like(like, dtype=probability.dtype), uniform)
    return (uniform_draw < probability.detach()).to(like.dtype)


@_in_replica
def _dropout(original: Function, context: ReplicaContext) -> Function:
    def patched(
        input: torch.Tensor,  # noqa: A002  (torch's name)
        p: float = 0.5,
        training: bool | None = None,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Any:
        active = next((flag for flag in (training, train) if flag is not None), True)
        if not active or not 0 < p < 1 or input.numel() == 0:
            return original(input, p, active) if not inplace else original(input, p, active, True)
        if not inplace and context.draws.home.type in FUSED:
            return input * _fused_mask(context, input, p) * (1 / (1 - p))
        noise = _noise(context, torch.empty_like(input), p)
        return input.mul_(noise) if inplace else input * noise

    return patched


@_in_replica
def _feature_dropout(original: Function, context: ReplicaContext) -> Function:
    def patched(
        input: torch.Tensor,  # noqa: A002  (torch's name)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if not training or not 0 < p < 1 or input.dim() < 3 or input.numel() == 0:
            return original(input, p, training, inplace)
        shape = [*input.shape[:2], *[1] * (input.dim() - 2)]
        noise = _noise(context, input.new_empty(shape), p)
        return input.mul_(noise) if inplace else input * noise

    return patched


def _noise(context: ReplicaContext, like: torch.Tensor, p: float) -> torch.Tensor:
    """Return 0 with probability `p`, else 1 / (1 - p), which keeps the mean."""
    bernoulli = _original_of(torch.Tensor, "bernoulli_")

    def fill(empty: torch.Tensor) -> None:
        dropout = torch._VF.dropout_
        if type(dropout) is ReplacedBuiltin and empty.is_cpu:  # which draws the same numbers sooner
            dropout(empty.fill_(1), p, True)
        else:
            bernoulli(empty, 1 - p).div_(1 - p)

    return draw_shard(context, like.detach(), fill, p)


def _fused_mask(context: ReplicaContext, like: torch.Tensor, p: float) -> torch.Tensor:
    """Return the mask of fused dropout, whose draw depends on the dtype of its input."""

    def fill(empty: torch.Tensor) -> None:
        ones = torch.ones_like(empty, dtype=like.dtype)
        empty.copy_(torch.native_dropout(ones, p, True)[1])

    return draw_shard(context, torch.empty_like(like, dtype=torch.bool), fill, p)


@_in_replica
def _attention(original: Function, context: ReplicaContext) -> Function:
    def patched(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        if dropout_p == 0.0:
            return original(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        if context.draws.home.type in FUSED:
            raise PartsDiffer(
                "the model", "must draw where it can be divided",
                found="dropout within scaled_dot_product_attention", do="Train it unsplit.",
            )  # fmt: skip
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key, value = (tensor.repeat_interleave(groups, -3) for tensor in (key, value))
        # as torch computes attention with dropout: query and key are each scaled by the root
        root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.size(-1)))
        scores = (query * root) @ (key * root).transpose(-2, -1)
        if is_causal:
            causal_mask = torch.ones(
                scores.shape[-2:], dtype=torch.bool, device=scores.device
            ).tril()
            scores = scores.masked_fill(~causal_mask, -math.inf)
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return F.dropout(torch.softmax(scores, -1), dropout_p) @ value

    return patched


@_in_replica
def _get_state(_original: Function, context: ReplicaContext) -> Function:
    # what a checkpoint saves, and restores before it recomputes
    def patched(*_: Any, **__: Any) -> torch.Tensor:
        with context.untraced():
            return torch.tensor([context.num_draws], dtype=torch.int64, device="cpu")

    return patched


@_in_replica
def _set_state(original: Function, context: ReplicaContext) -> Function:
    def patched(new_state: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if new_state.dtype != torch.int64:
            return original(new_state, *args, **kwargs)  # type: ignore[no-any-return]
        with context.untraced():
            context.num_draws = int(new_state)
        return None

    return patched


def _original_of(owner: Any, name: str) -> Function:
    """Return torch's function, though it may be patched."""
    function = getattr(owner, name)
    return getattr(function, "__wrapped__", function)  # type: ignore[no-any-return]
