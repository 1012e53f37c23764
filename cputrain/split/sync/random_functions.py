"""Functions of torch that draw random numbers, in replicas' threads: slices of the whole draw.

In any other thread they are torch's own, but for the question which thread it is.
"""

from __future__ import annotations

import math
from functools import wraps

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)

from cputrain.errors import PartsDiffer
from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from cputrain.split.execution.context import ReplicaContext

    Own = Callable[..., Any]

FUSED = ("cuda", "xpu")
"""Devices where torch's dropout draws by itself, from places of its own in the sequence."""

IN_PLACE = (
    "cauchy_", "exponential_", "geometric_", "log_normal_", "normal_", "random_", "uniform_",
)  # fmt: skip


def replacements() -> list[tuple[Any, str, Callable[[Own], Own]]]:
    """Where, which, and what makes ours of torch's."""
    found: list[tuple[Any, str, Callable[[Own], Own]]] = [
        (torch, "rand", _sized_first),
        (torch, "randn", _sized_first),
        (torch, "randint", _sized_last),
        (torch, "normal", _normal),
        (torch, "bernoulli", _bernoulli),
        (torch.Tensor, "bernoulli", _bernoulli),
        (torch.Tensor, "bernoulli_", _bernoulli_in_place),
        (torch, "dropout", _dropout),
        (F, "dropout", _dropout),
        (F, "scaled_dot_product_attention", _attention),
    ]
    found += [(torch, name, _like) for name in ("rand_like", "randn_like", "randint_like")]
    found += [(torch.Tensor, name, _in_place) for name in IN_PLACE]
    found += [(F, name, _feature_dropout) for name in ("dropout1d", "dropout2d", "dropout3d")]
    for place in (torch, torch.random, torch.cuda, torch.xpu):
        found += [(place, "get_rng_state", _get_state), (place, "set_rng_state", _set_state)]
    return found


def _in_part(make: Callable[[Own, ReplicaContext], Own]) -> Callable[[Own], Own]:
    """Ours where a replica draws from the default generator, and torch's elsewhere."""

    def of(own: Own) -> Own:
        @wraps(own)
        def ours(*args: Any, **options: Any) -> Any:
            part = current_replica()
            if part is None or options.get("generator") is not None:
                return own(*args, **options)
            return make(own, part)(*args, **options)

        return ours

    return of


def drawn(
    part: ReplicaContext, like: torch.Tensor, fill: Callable[[torch.Tensor], Any], *constants: Any
) -> torch.Tensor:
    """The part of a tensor like this one that `fill` fills for the whole batch.

    It is filled in the order in which memory lies, so the whole lies as the part does. `constants`
    are what is drawn and with which numbers: the same, however large the batch is.
    """

    def whole(shape: torch.Size, order: tuple[int, ...], device: torch.device) -> torch.Tensor:
        empty = torch.empty([shape[dim] for dim in order], dtype=like.dtype, device=device)
        empty = empty.permute([order.index(dim) for dim in range(len(order))])
        with torch.no_grad():
            fill(empty)
        return empty

    with part.untraced():
        found = part.draws.take(part, like.shape, order_of(like), like.device, whole)
    if part.trace is not None:
        part.trace.drawn(found, like, constants)
    return found


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Its dimensions as they lie in memory, the outermost first."""
    strides, order = tensor.stride(), list(range(tensor.dim()))
    if all(strides):  # of two alike, the one with a single element lies within the other
        order.sort(key=lambda dim: (-strides[dim], tensor.shape[dim] == 1))
    return tuple(order)


def contiguous(
    part: ReplicaContext,
    shape: torch.Size,
    options: dict[str, Any],
    make: Callable[..., Any],
    *constants: Any,
) -> Any:
    """The part of a tensor that `make` makes for the whole batch, with these options."""
    order = tuple(range(len(shape)))
    with part.untraced():
        device = torch.empty(0, device=options.get("device")).device
        found = part.draws.take(
            part, shape, order, device,
            lambda whole, _, there: make(whole, {**options, "device": there}),
        )  # fmt: skip
    if part.trace is not None:
        part.trace.drawn(found, None, (constants, sorted(options.items(), key=str)))
    return found


@_in_part
def _in_place(own: Own, part: ReplicaContext) -> Own:
    def ours(self: torch.Tensor, *args: Any, **options: Any) -> Any:
        return self.copy_(
            drawn(
                part, self, lambda empty: own(empty, *args, **options), own.__name__, args, options
            )
        )

    return ours


@_in_part
def _like(own: Own, part: ReplicaContext) -> Own:
    def ours(like: torch.Tensor, *args: Any, **options: Any) -> Any:
        wants_gradient = options.pop("requires_grad", False)
        kind = torch.empty_like(
            like,
            dtype=options.get("dtype"),
            memory_format=options.pop("memory_format", None) or torch.preserve_format,
        )
        found = drawn(
            part, kind, lambda empty: empty.copy_(own(empty, *args, **options)),
            own.__name__, args, options,
        )  # fmt: skip
        return found.requires_grad_(wants_gradient)

    return ours


@_in_part
def _sized_first(own: Own, part: ReplicaContext) -> Own:
    def ours(*args: Any, **options: Any) -> Any:
        with part.untraced():
            shape = own(*args, **{**options, "device": "meta"}).shape
        options.pop("size", None)
        return contiguous(
            part, shape, options, lambda whole, given: own(whole, **given), own.__name__
        )

    return ours


@_in_part
def _sized_last(own: Own, part: ReplicaContext) -> Own:
    def ours(*args: Any, **options: Any) -> Any:
        with part.untraced():
            shape = own(*args, **{**options, "device": "meta"}).shape
        if "size" not in options:
            args = args[:-1]
        named = {name: value for name, value in options.items() if name != "size"}
        return contiguous(
            part, shape, named, lambda whole, given: own(*args, **{**given, "size": whole}),
            own.__name__, args,
        )  # fmt: skip

    return ours


@_in_part
def _normal(own: Own, part: ReplicaContext) -> Own:
    def ours(mean: Any, std: Any = 1.0, *args: Any, **options: Any) -> Any:
        tensors = [one for one in (mean, std) if isinstance(one, torch.Tensor)]
        if not tensors:
            return _sized_last(own)(mean, std, *args, **options)
        like = torch.broadcast_tensors(*tensors)[0]  # type: ignore[no-untyped-call]
        empty = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        return drawn(part, empty, lambda whole: own_normal(whole)) * std + mean

    own_normal = _torchs(torch.Tensor, "normal_")
    return ours


@_in_part
def _bernoulli(_own: Own, part: ReplicaContext) -> Own:
    def ours(chance: torch.Tensor, p: float | None = None, **_options: Any) -> Any:
        if p is None:
            return _compared(part, chance, chance)
        return torch.empty_like(chance).bernoulli_(p)

    return ours


@_in_part
def _bernoulli_in_place(own: Own, part: ReplicaContext) -> Own:
    def ours(self: torch.Tensor, p: Any = 0.5, **_options: Any) -> Any:
        if isinstance(p, torch.Tensor):
            return self.copy_(_compared(part, self, p.expand_as(self)))
        return self.copy_(drawn(part, self, lambda empty: own(empty, p), own.__name__, p))

    return ours


def _compared(part: ReplicaContext, like: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Ones with these chances: torch draws one number between 0 and 1 for each, too."""
    uniform = _torchs(torch.Tensor, "uniform_")
    number = drawn(part, torch.empty_like(like, dtype=chance.dtype), uniform)
    return (number < chance.detach()).to(like.dtype)


@_in_part
def _dropout(own: Own, part: ReplicaContext) -> Own:
    def ours(
        input: torch.Tensor,  # noqa: A002  (torch's name)
        p: float = 0.5,
        training: bool | None = None,
        inplace: bool = False,
        train: bool | None = None,
    ) -> Any:
        active = next((one for one in (training, train) if one is not None), True)
        if not active or not 0 < p < 1 or input.numel() == 0:
            return own(input, p, active) if not inplace else own(input, p, active, True)
        if not inplace and part.draws.home.type in FUSED:
            return input * _kept(part, input, p) * (1 / (1 - p))
        noise = _noise(part, torch.empty_like(input), p)
        return input.mul_(noise) if inplace else input * noise

    return ours


@_in_part
def _feature_dropout(own: Own, part: ReplicaContext) -> Own:
    def ours(
        input: torch.Tensor,  # noqa: A002  (torch's name)
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
    ) -> Any:
        if not training or not 0 < p < 1 or input.dim() < 3 or input.numel() == 0:
            return own(input, p, training, inplace)
        shape = [*input.shape[:2], *[1] * (input.dim() - 2)]
        noise = _noise(part, input.new_empty(shape), p)
        return input.mul_(noise) if inplace else input * noise

    return ours


def _noise(part: ReplicaContext, like: torch.Tensor, p: float) -> torch.Tensor:
    """Zeros with this chance, and else what keeps the mean."""
    bernoulli = _torchs(torch.Tensor, "bernoulli_")
    return drawn(part, like.detach(), lambda empty: bernoulli(empty, 1 - p).div_(1 - p), p)


def _kept(part: ReplicaContext, like: torch.Tensor, p: float) -> torch.Tensor:
    """Where fused dropout leaves what it is given: how it draws depends on the type of that."""

    def fill(empty: torch.Tensor) -> None:
        ones = torch.ones_like(empty, dtype=like.dtype)
        empty.copy_(torch.native_dropout(ones, p, True)[1])

    return drawn(part, torch.empty_like(like, dtype=torch.bool), fill, p)


@_in_part
def _attention(own: Own, part: ReplicaContext) -> Own:
    def ours(
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
            return own(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale=scale,
                enable_gqa=enable_gqa,
            )
        if part.draws.home.type in FUSED:
            raise PartsDiffer(
                "the model", "must draw where it can be divided",
                found="dropout within scaled_dot_product_attention", do="Train it unsplit.",
            )  # fmt: skip
        if enable_gqa:
            groups = query.size(-3) // key.size(-3)
            key, value = (one.repeat_interleave(groups, -3) for one in (key, value))
        # as torch does it where attention has dropout: both are scaled, by the root
        root = math.sqrt(scale if scale is not None else 1 / math.sqrt(query.size(-1)))
        scores = (query * root) @ (key * root).transpose(-2, -1)
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~seen, -math.inf)
        elif attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        return F.dropout(torch.softmax(scores, -1), dropout_p) @ value

    return ours


@_in_part
def _get_state(_own: Own, part: ReplicaContext) -> Own:
    # what a checkpoint keeps, and gives back before it runs a part of the model again
    def ours(*_: Any, **__: Any) -> torch.Tensor:
        with part.untraced():
            return torch.tensor([part.drawn], dtype=torch.int64, device="cpu")

    return ours


@_in_part
def _set_state(own: Own, part: ReplicaContext) -> Own:
    def ours(new_state: torch.Tensor, *args: Any, **options: Any) -> None:
        if new_state.dtype != torch.int64:
            return own(new_state, *args, **options)  # type: ignore[no-any-return]
        with part.untraced():
            part.drawn = int(new_state)
        return None

    return ours


def _torchs(place: Any, name: str) -> Own:
    """Torch's own, though ours is in its place."""
    found = getattr(place, name)
    return getattr(found, "__wrapped__", found)  # type: ignore[no-any-return]
