"""Operators that look at the same elements in another shape or order."""

from __future__ import annotations

from math import prod

from cputrain.split.proof.sharding.elementwise import constant, only_replicated
from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    Operator,
    Reduced,
    SampleIndex,
    Shard,
    positive_dim,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Shape = Sequence[int]


def view(op: Operator) -> list[Layout]:
    """Elements keep their order: a sample's lie as far apart as before."""
    source, target = op["self"], op.outputs[0]
    layout = op.layout(source)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    if isinstance(layout, SampleIndex):
        found = _viewed(Shard(layout.dim), source.shape, target.shape, op.num_samples)
        if found.inner != 1 or target.shape[found.dim] != op.num_samples:
            raise MixesSamples("computes with the numbers of samples")
        return [layout._replace(dim=found.dim)]
    shard = op.shard(source)
    assert shard is not None
    return [_viewed(shard, source.shape, target.shape, op.num_samples)]


def _viewed(shard: Shard, source: Shape, target: Shape, num_samples: int) -> Shard:
    dim = shard.dim
    outer = source[dim] // (num_samples * shard.inner)
    before = prod(source[:dim]) * outer
    after = prod(source[dim + 1 :]) * shard.inner
    for dim in range(len(target)):
        ahead, behind = prod(target[:dim]), prod(target[dim + 1 :])
        if not ahead or not behind or before % ahead or after % behind:
            continue
        inner = after // behind
        if target[dim] == before // ahead * num_samples * inner:
            return Shard(dim, inner)
    raise MixesSamples("cuts a batch across its samples")


def permute(op: Operator) -> list[Layout]:
    tensor = op["self"]
    num_dims = tensor.dim()
    if op.name in ("t", "t_", "numpy_T"):
        order = list(range(num_dims))[::-1]
    elif op.name in ("transpose", "transpose_", "swapaxes"):
        order = list(range(num_dims))
        one, other = positive_dim(op["dim0"], num_dims), positive_dim(op["dim1"], num_dims)
        order[one], order[other] = order[other], order[one]
    else:
        order = [positive_dim(dim, num_dims) for dim in op["dims"]]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    return [layout._replace(dim=order.index(layout.dim))]


def unsqueeze(op: Operator) -> list[Layout]:
    layout = op.layout(op["self"])
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    at = positive_dim(op["dim"], op["self"].dim() + 1)
    return [layout._replace(dim=layout.dim + (at <= layout.dim))]


def squeeze(op: Operator) -> list[Layout]:
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    given = op["dim"]
    dims = range(tensor.dim()) if given is None else [given] if isinstance(given, int) else given
    dims = [positive_dim(dim, tensor.dim()) for dim in dims]
    if layout.dim in dims:
        if tensor.shape[layout.dim] == 1:
            raise MixesSamples("takes the dimension of the batch away")
        op.needs_two_samples = True
    gone = sum(dim < layout.dim and tensor.shape[dim] == 1 for dim in dims)
    return [layout._replace(dim=layout.dim - gone)]


def expand(op: Operator) -> list[Layout]:
    tensor, target = op["self"], op.outputs[0]
    layout = op.layout(tensor)
    if layout is None:
        return [constant(op)]
    if isinstance(layout, Opaque | Reduced):
        return [layout]
    return [layout._replace(dim=layout.dim + target.dim() - tensor.dim())]


def repeat(op: Operator) -> list[Layout]:
    tensor, target = op["self"], op.outputs[0]
    shard = op.shard(tensor)
    if shard is None:
        return [constant(op)]
    return [shard._replace(dim=shard.dim + target.dim() - tensor.dim())]


def select(op: Operator) -> list[Layout]:
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    dim = positive_dim(op["dim"], tensor.dim())
    if dim == layout.dim:
        raise MixesSamples("picks one of the samples")
    return [layout._replace(dim=layout.dim - (dim < layout.dim))]


def slice_(op: Operator) -> list[Layout]:
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    dim = positive_dim(op["dim"] or 0, tensor.dim())
    if dim != layout.dim or op.outputs[0].shape == tensor.shape:
        return [layout]
    if isinstance(layout, SampleIndex):
        raise MixesSamples("takes some of the samples")
    size, step = tensor.shape[dim], op["step"] or 1
    start = min(positive_dim(op["start"] or 0, size), size)
    end = size if op["end"] is None else min(positive_dim(op["end"], size), size)
    block = op.num_samples * layout.inner
    if step == 1 and start % block == 0 and end % block == 0:
        return [layout]
    if step == layout.inner and start < step and op.outputs[0].shape[dim] == size // step:
        return [Shard(dim)]
    raise MixesSamples("takes some of the samples")


def split(op: Operator) -> list[Layout]:
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return op.everywhere(layout)
    dim = positive_dim(op["dim"] or 0, tensor.dim())
    if dim == layout.dim and len(op.outputs) > 1:
        block = op.num_samples * (layout.inner if isinstance(layout, Shard) else 1)
        if any(output.shape[dim] % block for output in op.outputs):
            raise MixesSamples("takes some of the samples")
    return op.everywhere(layout)


def unbind(op: Operator) -> list[Layout]:
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return op.everywhere(None)
    dim = positive_dim(op["dim"] or 0, tensor.dim())
    if dim == shard.dim:
        raise MixesSamples("takes samples one by one")
    return op.everywhere(shard._replace(dim=shard.dim - (dim < shard.dim)))


def as_strided(op: Operator) -> list[Layout]:
    """Only strides of dimensions with one element may be others, as average pooling has them."""
    tensor, target = op["self"], op.outputs[0]
    shard = op.shard(tensor)
    if shard is None:
        return only_replicated(op)
    same = all(
        size == 1 or one == other
        for size, one, other in zip(tensor.shape, tensor.stride(), target.stride(), strict=False)
    )
    if tensor.shape != target.shape or not same or op["storage_offset"] not in (
        None, tensor.storage_offset(),
    ):  # fmt: skip
        raise MixesSamples("looks at memory by strides of its own")
    return [shard]


def unfold(op: Operator) -> list[Layout]:
    shard = op.shard(op["self"])
    if shard is not None and positive_dim(op["dimension"], op["self"].dim()) == shard.dim:
        raise MixesSamples("slides over the samples")
    return [shard]


def diagonal(op: Operator) -> list[Layout]:
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return [None]
    gone = {positive_dim(op[name] or 0, tensor.dim()) for name in ("dim1", "dim2")}
    if op["dim2"] is None:
        gone = {0, 1}
    if shard.dim in gone:
        raise MixesSamples("takes a diagonal over the samples")
    return [shard._replace(dim=shard.dim - sum(dim < shard.dim for dim in gone))]
