"""Rules of indexing operators: embedding, gather and scatter, concatenation, cdist."""

from __future__ import annotations

import torch

from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    OperatorCall,
    Reduced,
    SampleIndex,
    Shard,
    common_layout,
    positive_dim,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def embedding(op: OperatorCall) -> list[Layout]:
    """Look up rows of a replicated table; the output is sharded like the indices."""
    if op.layout(op["weight"]) is not None:
        raise MixesSamples("looks up rows of a batch")
    return [op.shard(op["indices"])]


def embedding_bag(op: OperatorCall) -> list[Layout]:
    """Reduce the rows of each bag, where each sample is one bag of equal size."""
    weight, indices, offsets = op["weight"], op.layout(op["indices"]), op.layout(op["offsets"])
    scaled = op.layout(op["per_sample_weights"])
    if op.layout(weight) is None and indices is None and offsets is None and scaled is None:
        return op.same_layout_for_all(None)
    if (
        op.layout(weight) is not None
        or not isinstance(indices, Shard)
        or offsets != SampleIndex(0, indices.inner)
        or scaled not in (None, indices)
        or op["indices"].numel() != op.num_samples * indices.inner
    ):
        raise MixesSamples("adds up rows in bags that are not those of single samples")
    return [Shard(0), *[Opaque()] * (len(op.outputs) - 1)]


def gather(op: OperatorCall) -> list[Layout]:
    """Gather or scatter within each sample: index and source are sharded like the tensor."""
    tensor = op["self"]
    dim = positive_dim(op["dim"], tensor.dim())
    values = [op[name] for name in ("self", "index", "src") if isinstance(op[name], torch.Tensor)]
    layouts = [op.shard(value) for value in values]
    shard = common_layout(layouts)
    if shard is None:
        return op.same_layout_for_all(None)
    assert isinstance(shard, Shard)
    if None in layouts or shard.dim == dim:
        raise MixesSamples("picks entries across the batch")
    if any(value.shape[shard.dim] != tensor.shape[shard.dim] for value in values):
        raise MixesSamples("picks entries across the batch")
    return op.same_layout_for_all(shard)


def index_select(op: OperatorCall) -> list[Layout]:
    """Select along a dimension other than the batch, or from a replicated tensor."""
    tensor = op["self"]
    dim = positive_dim(op["dim"], tensor.dim())
    shard, index = op.shard(tensor), op.shard(op["index"])
    if shard is None and index is None:
        return [None]
    if shard is None:
        assert index is not None
        return [Shard(dim, index.inner)]
    if index is not None or dim == shard.dim:
        raise MixesSamples("picks samples by their numbers")
    return [shard]


def index_fill(op: OperatorCall) -> list[Layout]:
    """Apply index_add, index_copy or index_fill at positions shared by all samples."""
    tensor = op["self"]
    dim = positive_dim(op["dim"], tensor.dim())
    shard, index = op.shard(tensor), op.shard(op["index"])
    source = op["source"] if op["source"] is not None else op["value"]
    source_shard = op.shard(source)
    if index is not None or (source_shard is not None and source_shard != shard):
        raise MixesSamples("writes to places that depend on the batch")
    if shard is not None and (
        dim == shard.dim
        or (isinstance(source, torch.Tensor) and source.dim() and source_shard is None)
    ):
        raise MixesSamples("writes to samples by their numbers")
    return op.same_layout_for_all(shard)


def index(op: OperatorCall) -> list[Layout]:
    """Read or write `self[indices]`; results have the position of the broadcast indices."""
    tensor, indices = op["self"], op["indices"]
    indexed_dims = [dim for dim, index_tensor in enumerate(indices) if index_tensor is not None]
    index_tensors = [indices[dim] for dim in indexed_dims]
    shard = op.shard(tensor)
    masks = [
        index_tensor
        for index_tensor in index_tensors
        if index_tensor.dtype in (torch.bool, torch.uint8)
    ]
    if masks and any(
        op.layout(index_tensor) is not None for index_tensor in (tensor, *index_tensors)
    ):
        return _masked_assignment(op, shard, masks[0], indexed_dims)
    shape: tuple[int, ...] = ()
    if index_tensors:
        shape = torch.broadcast_shapes(*(index_tensor.shape for index_tensor in index_tensors))  # type: ignore[no-untyped-call]
    sample_index: SampleIndex | None = None
    sharded: list[Layout] = []
    for dim, index_tensor in zip(indexed_dims, index_tensors, strict=True):
        layout = op.layout(index_tensor)
        if layout is None:
            if shard is not None and dim == shard.dim:
                raise MixesSamples("picks samples by their numbers")
            continue
        if isinstance(layout, Opaque | Reduced):
            raise MixesSamples("picks entries by numbers that are not those of samples")
        position = layout.dim + len(shape) - index_tensor.dim()
        if isinstance(layout, SampleIndex):
            if shard is None or dim != shard.dim or shard.inner != 1 or layout.step != 1:
                raise MixesSamples("computes with the numbers of samples")
            if tensor.shape[dim] != op.num_samples:
                raise MixesSamples("computes with the numbers of samples")
            sample_index = layout
            sharded.append(Shard(position))
        else:
            if shard is not None and dim == shard.dim:
                raise MixesSamples("picks samples by their numbers")
            sharded.append(Shard(position, layout.inner))
    index_shard = common_layout(sharded)
    assert isinstance(index_shard, Shard | None)
    if shard is not None and index_shard is not None and sample_index is None:
        raise MixesSamples("picks entries across the batch")
    if sample_index is not None and index_shard is not None:
        for index_tensor in index_tensors:
            dim = index_shard.dim - len(shape) + index_tensor.dim()
            if op.layout(index_tensor) is None and dim >= 0 and index_tensor.shape[dim] != 1:
                raise MixesSamples("combines a batch with a tensor that has rows of its own")
    are_adjacent = (
        indexed_dims == list(range(indexed_dims[0], indexed_dims[-1] + 1)) if indexed_dims else True
    )
    first_dim = (indexed_dims[0] if are_adjacent else 0) if indexed_dims else 0
    if index_shard is not None:
        result: Shard | None = index_shard._replace(dim=index_shard.dim + first_dim)
    elif shard is None:
        result = None
    else:
        remaining_dims = [dim for dim in range(tensor.dim()) if dim not in indexed_dims]
        position = remaining_dims.index(shard.dim)
        result = shard._replace(
            dim=position + (len(shape) if not indexed_dims or position >= first_dim else 0)
        )
    if "put" not in op.name:
        return [result]
    values_shard = op.shard(op["values"])
    if shard is None and (index_shard is not None or values_shard is not None):
        raise MixesSamples("writes a batch into what has none")
    if values_shard is not None and result is not None:
        total = len(shape) + tensor.dim() - len(indexed_dims)
        if values_shard._replace(dim=values_shard.dim + total - op["values"].dim()) != result:
            raise MixesSamples("writes samples to the places of others")
    elif values_shard is None and result is not None and op["values"].dim():
        total = len(shape) + tensor.dim() - len(indexed_dims)
        dim = result.dim - total + op["values"].dim()
        if dim >= 0 and op["values"].shape[dim] != 1:
            raise MixesSamples("writes rows of a tensor that is no batch")
    return op.same_layout_for_all(shard)


def _masked_assignment(
    op: OperatorCall, shard: Shard | None, mask: torch.Tensor, indexed_dims: Sequence[int]
) -> list[Layout]:
    """Assign one number with `self[mask] = number`, where mask and tensor have the same samples."""
    if "put" not in op.name or op["values"].numel() != 1:
        raise MixesSamples("has a result whose size depends on values of the batch")
    if len(indexed_dims) > 1 or shard is None or shard.dim < indexed_dims[0]:
        raise MixesSamples("writes where a mask says, across the batch")
    if op.shard(mask) not in (shard._replace(dim=shard.dim - indexed_dims[0]),):
        raise MixesSamples("writes where a mask says, across the batch")
    return op.same_layout_for_all(shard)


def concatenate(op: OperatorCall) -> list[Layout]:
    """Concatenate or stack tensors that are all sharded alike."""
    tensors = op["tensors"]
    non_empty = [tensor for tensor in tensors if tensor.dim() != 1 or tensor.numel()]
    layouts = [op.shard(tensor) for tensor in non_empty]
    shard = common_layout(layouts)
    if shard is None:
        return [None]
    assert isinstance(shard, Shard)
    if None in layouts:
        raise MixesSamples("puts a batch beside a tensor that has rows of its own")
    if op.name == "stack":
        position = positive_dim(op["dim"] or 0, op.outputs[0].dim())
        return [shard._replace(dim=shard.dim + (position <= shard.dim))]
    return [shard]  # along the batch itself: batches one after another


def cdist(op: OperatorCall) -> list[Layout]:
    """Compute cdist: distances between rows of one tensor and rows of another."""
    left, right = op["x1"], op["x2"]
    left_shard, right_shard = op.shard(left), op.shard(right)
    if left_shard is None and right_shard is None:
        return op.same_layout_for_all(None)
    if left_shard is not None and right_shard is not None:
        if left_shard != right_shard or left_shard.dim >= left.dim() - 2:
            raise MixesSamples("compares samples with one another")
        return op.same_layout_for_all(left_shard)
    shard, rows = (
        (left_shard, left.dim() - 2) if left_shard is not None else (right_shard, right.dim() - 2)
    )
    assert shard is not None
    if shard.dim != rows and (left if right_shard is not None else right).dim() > 2:
        raise MixesSamples("combines a batch with a tensor that has rows of its own")
    if shard.dim == rows + 1:
        raise MixesSamples("adds over the samples")
    return op.same_layout_for_all(shard if left_shard is not None else shard._replace(dim=rows + 1))
