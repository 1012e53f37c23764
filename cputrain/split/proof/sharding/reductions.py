"""Operators along dimensions: sums, softmax, sorts, windows, losses."""

from __future__ import annotations

from cputrain.split.proof.sharding.elementwise import pointwise
from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    Operator,
    Shard,
    common_layout,
    positive_dim,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def along(op: Operator, name: str = "dim", verb: str = "normalises, sorts or adds up") -> Any:
    """Outputs of the same shape, each made from a line of its input."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return op.everywhere(None)
    given = op[name]
    dims = [-1] if given is None else [given] if isinstance(given, int) else list(given)
    if shard.dim in [positive_dim(dim, tensor.dim()) for dim in dims]:
        raise MixesSamples(f"{verb} along the batch")
    return op.everywhere(shard)


def reduce(op: Operator) -> list[Layout]:
    """Sums, means, extremes, norms, over some or all dimensions."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return op.everywhere(None)
    given = op["dim"]
    dims = [given] if isinstance(given, int) else list(given or range(tensor.dim()))
    dims = [positive_dim(dim, tensor.dim()) for dim in dims]
    if shard.dim in dims:
        raise MixesSamples("reduces the batch")
    gone = 0 if op["keepdim"] else sum(dim < shard.dim for dim in dims)
    return op.everywhere(shard._replace(dim=shard.dim - gone))


def trailing(op: Operator, count: int, name: str = "self") -> list[Layout]:
    """The last `count` dimensions are worked on; those before are left alone."""
    tensor = op["A" if op[name] is None else name]  # (as functions of torch.linalg have it)
    shard = op.shard(tensor)
    if any(op.layout(other) is not None for other in op.tensors if other is not tensor):
        raise MixesSamples("is given weights that depend on the batch")
    if shard is not None and shard.dim >= tensor.dim() - count:
        raise MixesSamples("works across the batch")
    return op.everywhere(shard)


def padded(op: Operator) -> list[Layout]:
    pads = op["pad"] if op["pad"] is not None else op["padding"]
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return [None]
    at = tensor.dim() - 1 - shard.dim
    if 2 * at < len(pads) and any(pads[2 * at : 2 * at + 2]):
        raise MixesSamples("pads the batch")
    return [shard]


def dims_of(op: Operator) -> list[Layout]:
    """flip, roll: along the dimensions that are given."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is not None:
        dims = [positive_dim(dim, tensor.dim()) for dim in op["dims"] or range(tensor.dim())]
        if shard.dim in dims:
            raise MixesSamples("changes the order of the samples")
    return [shard]


def loss(op: Operator) -> list[Layout]:
    if op["reduction"] != 0:
        if all(op.shard(tensor) is None for tensor in op.tensors):
            return op.everywhere(None)
        raise MixesSamples("makes one number of the whole batch, as a loss does")
    return pointwise(op)


def class_loss(op: Operator) -> list[Layout]:
    layouts = [op.shard(op[name]) for name in ("self", "target")]
    found = common_layout(layouts)
    if found is None:
        return op.everywhere(None)
    assert isinstance(found, Shard)
    if op["reduction"] != 0:
        raise MixesSamples("makes one number of the whole batch, as a loss does")
    if None in layouts or found.dim != 0 or op.layout(op["weight"]) is not None:
        raise MixesSamples("needs samples in the first dimension")
    return [found, Opaque()]
