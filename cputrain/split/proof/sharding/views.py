"""Rules of view operators: reshape, permute, slice, expand and similar."""

from __future__ import annotations

from math import prod

from cputrain.split.proof.sharding.elementwise import constant, only_replicated
from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    OperatorCall,
    Reduced,
    SampleIndex,
    Shard,
    positive_dim,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    Shape = Sequence[int]


def view(op: OperatorCall) -> list[Layout]:
    """Reshape: the elements keep their order, so the batch keeps its stride."""
    source, target = op["self"], op.outputs[0]
    layout = op.layout(source)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    if isinstance(layout, SampleIndex):
        shard_view = _reshaped_shard(Shard(layout.dim), source.shape, target.shape, op.num_samples)
        if shard_view.inner != 1 or target.shape[shard_view.dim] != op.num_samples:
            raise MixesSamples("computes with the numbers of samples")
        return [layout._replace(dim=shard_view.dim)]
    shard = op.shard(source)
    assert shard is not None
    return [_reshaped_shard(shard, source.shape, target.shape, op.num_samples)]


def _reshaped_shard(shard: Shard, source: Shape, target: Shape, num_samples: int) -> Shard:
    """Return the shard in the target shape: outer and inner sizes must stay the same."""
    dim = shard.dim
    outer = source[dim] // (num_samples * shard.inner)
    before = prod(source[:dim]) * outer
    after = prod(source[dim + 1 :]) * shard.inner
    for dim in range(len(target)):
        target_before, target_after = prod(target[:dim]), prod(target[dim + 1 :])
        if not target_before or not target_after or before % target_before or after % target_after:
            continue
        inner = after // target_after
        if target[dim] == before // target_before * num_samples * inner:
            return Shard(dim, inner)
    raise MixesSamples("cuts a batch across its samples")


def permute(op: OperatorCall) -> list[Layout]:
    """Permute dimensions."""
    tensor = op["self"]
    num_dims = tensor.dim()
    if op.name in ("t", "t_", "numpy_T"):
        order = list(range(num_dims))[::-1]
    elif op.name in ("transpose", "transpose_", "swapaxes"):
        order = list(range(num_dims))
        dim0, dim1 = positive_dim(op["dim0"], num_dims), positive_dim(op["dim1"], num_dims)
        order[dim0], order[dim1] = order[dim1], order[dim0]
    else:
        order = [positive_dim(dim, num_dims) for dim in op["dims"]]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    return [layout._replace(dim=order.index(layout.dim))]


def unsqueeze(op: OperatorCall) -> list[Layout]:
    """Insert a dimension of size 1."""
    layout = op.layout(op["self"])
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    position = positive_dim(op["dim"], op["self"].dim() + 1)
    return [layout._replace(dim=layout.dim + (position <= layout.dim))]


def squeeze(op: OperatorCall) -> list[Layout]:
    """Remove dimensions of size 1, which must not be the batch."""
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    requested = op["dim"]
    dims = (
        range(tensor.dim())
        if requested is None
        else [requested]
        if isinstance(requested, int)
        else requested
    )
    dims = [positive_dim(dim, tensor.dim()) for dim in dims]
    if layout.dim in dims:
        if tensor.shape[layout.dim] == 1:
            raise MixesSamples("takes the dimension of the batch away")
        op.needs_two_samples = True
    num_removed = sum(dim < layout.dim and tensor.shape[dim] == 1 for dim in dims)
    return [layout._replace(dim=layout.dim - num_removed)]


def expand(op: OperatorCall) -> list[Layout]:
    """Expand to a larger shape; replicated tensors may get a row for each sample."""
    tensor, target = op["self"], op.outputs[0]
    layout = op.layout(tensor)
    if layout is None:
        return [constant(op)]
    if isinstance(layout, Opaque | Reduced):
        return [layout]
    return [layout._replace(dim=layout.dim + target.dim() - tensor.dim())]


def repeat(op: OperatorCall) -> list[Layout]:
    """Repeat a tensor; replicated tensors may get a row for each sample."""
    tensor, target = op["self"], op.outputs[0]
    shard = op.shard(tensor)
    if shard is None:
        return [constant(op)]
    return [shard._replace(dim=shard.dim + target.dim() - tensor.dim())]


def select(op: OperatorCall) -> list[Layout]:
    """Select an index of a dimension other than the batch."""
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    dim = positive_dim(op["dim"], tensor.dim())
    if dim == layout.dim:
        raise MixesSamples("picks one of the samples")
    return [layout._replace(dim=layout.dim - (dim < layout.dim))]


def slice_(op: OperatorCall) -> list[Layout]:
    """Slice another dimension, or entries inside of each sample."""
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


def split(op: OperatorCall) -> list[Layout]:
    """Split along another dimension, or between whole batches."""
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return op.same_layout_for_all(layout)
    dim = positive_dim(op["dim"] or 0, tensor.dim())
    if dim == layout.dim and len(op.outputs) > 1:
        block = op.num_samples * (layout.inner if isinstance(layout, Shard) else 1)
        if any(output.shape[dim] % block for output in op.outputs):
            raise MixesSamples("takes some of the samples")
    return op.same_layout_for_all(layout)


def unbind(op: OperatorCall) -> list[Layout]:
    """Unbind a dimension other than the batch."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return op.same_layout_for_all(None)
    dim = positive_dim(op["dim"] or 0, tensor.dim())
    if dim == shard.dim:
        raise MixesSamples("takes samples one by one")
    return op.same_layout_for_all(shard._replace(dim=shard.dim - (dim < shard.dim)))


def as_strided(op: OperatorCall) -> list[Layout]:
    """Accept a view with the same shape and strides.

    Strides of dimensions of size 1 may differ, as after average pooling.
    """
    tensor, target = op["self"], op.outputs[0]
    shard = op.shard(tensor)
    if shard is None:
        return only_replicated(op)
    has_same_strides = all(
        size == 1 or stride == target_stride
        for size, stride, target_stride in zip(
            tensor.shape, tensor.stride(), target.stride(), strict=False
        )
    )
    if tensor.shape != target.shape or not has_same_strides or op["storage_offset"] not in (
        None, tensor.storage_offset(),
    ):  # fmt: skip
        raise MixesSamples("looks at memory by strides of its own")
    return [shard]


def unfold(op: OperatorCall) -> list[Layout]:
    """Extract sliding windows from a dimension other than the batch."""
    shard = op.shard(op["self"])
    if shard is not None and positive_dim(op["dimension"], op["self"].dim()) == shard.dim:
        raise MixesSamples("slides over the samples")
    return [shard]


def diagonal(op: OperatorCall) -> list[Layout]:
    """Take a diagonal of two dimensions other than the batch."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return [None]
    removed = {positive_dim(op[name] or 0, tensor.dim()) for name in ("dim1", "dim2")}
    if op["dim2"] is None:
        removed = {0, 1}
    if shard.dim in removed:
        raise MixesSamples("takes a diagonal over the samples")
    return [shard._replace(dim=shard.dim - sum(dim < shard.dim for dim in removed))]
