"""Tables and indices: embeddings, gather and scatter, concatenation, distances."""

from __future__ import annotations

import torch

from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    Operator,
    Reduced,
    SampleIndex,
    Shard,
    common_layout,
    positive_dim,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def embedding(op: Operator) -> list[Layout]:
    if op.layout(op["weight"]) is not None:
        raise MixesSamples("looks up rows of a batch")
    return [op.shard(op["indices"])]


def embedding_bag(op: Operator) -> list[Layout]:
    weight, indices, offsets = op["weight"], op.layout(op["indices"]), op.layout(op["offsets"])
    scaled = op.layout(op["per_sample_weights"])
    if op.layout(weight) is None and indices is None and offsets is None and scaled is None:
        return op.everywhere(None)
    if (
        op.layout(weight) is not None
        or not isinstance(indices, Shard)
        or offsets != SampleIndex(0, indices.inner)
        or scaled not in (None, indices)
        or op["indices"].numel() != op.num_samples * indices.inner
    ):
        raise MixesSamples("adds up rows in bags that are not those of single samples")
    return [Shard(0), *[Opaque()] * (len(op.outputs) - 1)]


def gather(op: Operator) -> list[Layout]:
    """gather, scatter and their kin: index and source lie as the tensor does."""
    tensor = op["self"]
    dim = positive_dim(op["dim"], tensor.dim())
    values = [op[name] for name in ("self", "index", "src") if isinstance(op[name], torch.Tensor)]
    layouts = [op.shard(value) for value in values]
    found = common_layout(layouts)
    if found is None:
        return op.everywhere(None)
    assert isinstance(found, Shard)
    if None in layouts or found.dim == dim:
        raise MixesSamples("picks entries across the batch")
    if any(value.shape[found.dim] != tensor.shape[found.dim] for value in values):
        raise MixesSamples("picks entries across the batch")
    return op.everywhere(found)


def index_select(op: Operator) -> list[Layout]:
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


def index_fill(op: Operator) -> list[Layout]:
    """index_add, index_copy, index_fill: along one dimension, at places that all samples share."""
    tensor = op["self"]
    dim = positive_dim(op["dim"], tensor.dim())
    shard, index = op.shard(tensor), op.shard(op["index"])
    source = op["source"] if op["source"] is not None else op["value"]
    given = op.shard(source)
    if index is not None or (given is not None and given != shard):
        raise MixesSamples("writes to places that depend on the batch")
    if shard is not None and (
        dim == shard.dim or (isinstance(source, torch.Tensor) and source.dim() and given is None)
    ):
        raise MixesSamples("writes to samples by their numbers")
    return op.everywhere(shard)


def index(op: Operator) -> list[Layout]:
    """Read or write `self[indices]`; what is read lies where the broadcast indices lie."""
    tensor, indices = op["self"], op["indices"]
    places = [dim for dim, one in enumerate(indices) if one is not None]
    used = [indices[dim] for dim in places]
    shard = op.shard(tensor)
    masks = [one for one in used if one.dtype in (torch.bool, torch.uint8)]
    if masks and any(op.layout(one) is not None for one in (tensor, *used)):
        return _masked(op, shard, masks[0], places)
    shape: tuple[int, ...] = ()
    if used:
        shape = torch.broadcast_shapes(*(one.shape for one in used))  # type: ignore[no-untyped-call]
    own: SampleIndex | None = None
    sharded: list[Layout] = []
    for dim, one in zip(places, used, strict=True):
        layout = op.layout(one)
        if layout is None:
            if shard is not None and dim == shard.dim:
                raise MixesSamples("picks samples by their numbers")
            continue
        if isinstance(layout, Opaque | Reduced):
            raise MixesSamples("picks entries by numbers that are not those of samples")
        at = layout.dim + len(shape) - one.dim()
        if isinstance(layout, SampleIndex):
            if shard is None or dim != shard.dim or shard.inner != 1 or layout.step != 1:
                raise MixesSamples("computes with the numbers of samples")
            if tensor.shape[dim] != op.num_samples:
                raise MixesSamples("computes with the numbers of samples")
            own = layout
            sharded.append(Shard(at))
        else:
            if shard is not None and dim == shard.dim:
                raise MixesSamples("picks samples by their numbers")
            sharded.append(Shard(at, layout.inner))
    found = common_layout(sharded)
    assert isinstance(found, Shard | None)
    if shard is not None and found is not None and own is None:
        raise MixesSamples("picks entries across the batch")
    if own is not None and found is not None:
        for one in used:
            dim = found.dim - len(shape) + one.dim()
            if op.layout(one) is None and dim >= 0 and one.shape[dim] != 1:
                raise MixesSamples("combines a batch with a tensor that has rows of its own")
    adjacent = places == list(range(places[0], places[-1] + 1)) if places else True
    first = (places[0] if adjacent else 0) if places else 0
    if found is not None:
        result: Shard | None = found._replace(dim=found.dim + first)
    elif shard is None:
        result = None
    else:
        rest = [dim for dim in range(tensor.dim()) if dim not in places]
        at = rest.index(shard.dim)
        result = shard._replace(dim=at + (len(shape) if not places or at >= first else 0))
    if "put" not in op.name:
        return [result]
    values = op.shard(op["values"])
    if shard is None and (found is not None or values is not None):
        raise MixesSamples("writes a batch into what has none")
    if values is not None and result is not None:
        total = len(shape) + tensor.dim() - len(places)
        if values._replace(dim=values.dim + total - op["values"].dim()) != result:
            raise MixesSamples("writes samples to the places of others")
    elif values is None and result is not None and op["values"].dim():
        total = len(shape) + tensor.dim() - len(places)
        dim = result.dim - total + op["values"].dim()
        if dim >= 0 and op["values"].shape[dim] != 1:
            raise MixesSamples("writes rows of a tensor that is no batch")
    return op.everywhere(shard)


def _masked(
    op: Operator, shard: Shard | None, mask: torch.Tensor, places: Sequence[int]
) -> list[Layout]:
    """`self[mask] = number`, where the mask has the samples that the tensor has."""
    if "put" not in op.name or op["values"].numel() != 1:
        raise MixesSamples("has a result whose size depends on values of the batch")
    if len(places) > 1 or shard is None or shard.dim < places[0]:
        raise MixesSamples("writes where a mask says, across the batch")
    if op.shard(mask) not in (shard._replace(dim=shard.dim - places[0]),):
        raise MixesSamples("writes where a mask says, across the batch")
    return op.everywhere(shard)


def concatenate(op: Operator) -> list[Layout]:
    tensors = op["tensors"]
    given = [one for one in tensors if one.dim() != 1 or one.numel()]
    layouts = [op.shard(one) for one in given]
    found = common_layout(layouts)
    if found is None:
        return [None]
    assert isinstance(found, Shard)
    if None in layouts:
        raise MixesSamples("puts a batch beside a tensor that has rows of its own")
    if op.name == "stack":
        at = positive_dim(op["dim"] or 0, op.outputs[0].dim())
        return [found._replace(dim=found.dim + (at <= found.dim))]
    return [found]  # along the batch itself: batches one after another


def distances(op: Operator) -> list[Layout]:
    """cdist: rows of one against rows of the other."""
    one, other = op["x1"], op["x2"]
    a, b = op.shard(one), op.shard(other)
    if a is None and b is None:
        return op.everywhere(None)
    if a is not None and b is not None:
        if a != b or a.dim >= one.dim() - 2:
            raise MixesSamples("compares samples with one another")
        return op.everywhere(a)
    shard, rows = (a, one.dim() - 2) if a is not None else (b, other.dim() - 2)
    assert shard is not None
    if shard.dim != rows and (one if b is not None else other).dim() > 2:
        raise MixesSamples("combines a batch with a tensor that has rows of its own")
    if shard.dim == rows + 1:
        raise MixesSamples("adds over the samples")
    return op.everywhere(shard if a is not None else shard._replace(dim=rows + 1))
