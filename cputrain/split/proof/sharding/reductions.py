"""Rules of operators along dimensions: reductions, softmax, sort, pooling, padding, losses."""

from __future__ import annotations

from cputrain.split.proof.sharding.elementwise import pointwise
from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    OperatorCall,
    Shard,
    common_layout,
    positive_dim,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def along(op: OperatorCall, name: str = "dim", verb: str = "normalises, sorts or adds up") -> Any:
    """Apply an operator that keeps the shape and works along dimensions other than the batch."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return op.same_layout_for_all(None)
    requested = op[name]
    dims = (
        [-1]
        if requested is None
        else [requested]
        if isinstance(requested, int)
        else list(requested)
    )
    if shard.dim in [positive_dim(dim, tensor.dim()) for dim in dims]:
        raise MixesSamples(f"{verb} along the batch")
    return op.same_layout_for_all(shard)


def reduce(op: OperatorCall) -> list[Layout]:
    """Reduce over some or all dimensions: sums, means, extrema, norms."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return op.same_layout_for_all(None)
    requested = op["dim"]
    dims = [requested] if isinstance(requested, int) else list(requested or range(tensor.dim()))
    dims = [positive_dim(dim, tensor.dim()) for dim in dims]
    if shard.dim in dims:
        raise MixesSamples("reduces the batch")
    num_removed = 0 if op["keepdim"] else sum(dim < shard.dim for dim in dims)
    return op.same_layout_for_all(shard._replace(dim=shard.dim - num_removed))


def trailing_dims(op: OperatorCall, count: int, name: str = "self") -> list[Layout]:
    """Apply an operator to the last `count` dimensions; the batch must come before them."""
    tensor = op["A" if op[name] is None else name]  # (as functions of torch.linalg have it)
    shard = op.shard(tensor)
    if any(op.layout(weight) is not None for weight in op.tensors if weight is not tensor):
        raise MixesSamples("is given weights that depend on the batch")
    if shard is not None and shard.dim >= tensor.dim() - count:
        raise MixesSamples("works across the batch")
    return op.same_layout_for_all(shard)


def pad(op: OperatorCall) -> list[Layout]:
    """Pad dimensions other than the batch."""
    pads = op["pad"] if op["pad"] is not None else op["padding"]
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return [None]
    offset = tensor.dim() - 1 - shard.dim
    if 2 * offset < len(pads) and any(pads[2 * offset : 2 * offset + 2]):
        raise MixesSamples("pads the batch")
    return [shard]


def reorder(op: OperatorCall) -> list[Layout]:
    """Reorder along the given dimensions (flip, roll), which must not be the batch."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is not None:
        dims = [positive_dim(dim, tensor.dim()) for dim in op["dims"] or range(tensor.dim())]
        if shard.dim in dims:
            raise MixesSamples("changes the order of the samples")
    return [shard]


def loss(op: OperatorCall) -> list[Layout]:
    """Compute an element-wise loss; a reduction over the batch is refused."""
    if op["reduction"] != 0:
        if all(op.shard(tensor) is None for tensor in op.tensors):
            return op.same_layout_for_all(None)
        raise MixesSamples("makes one number of the whole batch, as a loss does")
    return pointwise(op)


def class_loss(op: OperatorCall) -> list[Layout]:
    """Compute nll_loss for each sample; a reduction over the batch is refused."""
    layouts = [op.shard(op[name]) for name in ("self", "target")]
    shard = common_layout(layouts)
    if shard is None:
        return op.same_layout_for_all(None)
    assert isinstance(shard, Shard)
    if op["reduction"] != 0:
        raise MixesSamples("makes one number of the whole batch, as a loss does")
    if None in layouts or shard.dim != 0 or op.layout(op["weight"]) is not None:
        raise MixesSamples("needs samples in the first dimension")
    return [shard, Opaque()]
