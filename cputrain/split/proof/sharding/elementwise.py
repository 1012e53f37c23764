"""Rules of element-wise operators, factories and table look-ups."""

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
)

COPIES = frozenset({"_to_copy", "clone", "detach", "alias", "lift_fresh", "lift", "to"})
"""Operators that copy a tensor and so keep any layout."""


def pointwise(op: OperatorCall) -> list[Layout]:
    """Broadcast the arguments, with dimensions aligned at their ends; keep the common layout."""
    num_dims = op.outputs[0].dim() if op.outputs else 0
    if any(isinstance(op.layout(tensor), Reduced) for tensor in op.tensors):
        return _combine_losses(op)
    sharded: list[Layout] = []
    for tensor in op.tensors:
        tensor_layout = op.layout(tensor)
        if isinstance(tensor_layout, SampleIndex) and op.name in COPIES:
            sharded.append(tensor_layout._replace(dim=tensor_layout.dim + num_dims - tensor.dim()))
        elif isinstance(tensor_layout, Opaque) and op.name in COPIES:
            return [tensor_layout]
        elif (shard := op.shard(tensor)) is not None:
            if not op.outputs:
                raise MixesSamples("reads the values of samples")
            dim = shard.dim + num_dims - tensor.dim()
            if tensor.shape[shard.dim] != op.outputs[0].shape[dim]:
                raise MixesSamples("repeats a batch of another size")
            sharded.append(shard._replace(dim=dim))
    layout = common_layout(sharded)
    if isinstance(layout, Shard):
        for tensor in op.tensors:
            dim = layout.dim - num_dims + tensor.dim()
            if op.layout(tensor) is None and dim >= 0 and tensor.shape[dim] != 1:
                raise MixesSamples("combines a batch with a tensor that has rows of its own")
    return op.same_layout_for_all(layout)


def _combine_losses(op: OperatorCall) -> list[Layout]:
    """Combine losses with constants only.

    Another tensor that requires a gradient would get one from every replica.
    """
    for tensor in op.tensors:
        layout = op.layout(tensor)
        if not isinstance(layout, Reduced) and (layout is not None or tensor.requires_grad):
            raise MixesSamples("combines a loss of the whole batch with what is none")
    return op.same_layout_for_all(Reduced())


def factory(op: OperatorCall) -> list[Layout]:
    """Create a constant, which may have a row for each sample as all rows are equal."""
    if any(op.layout(tensor) is not None for tensor in op.tensors if tensor is not op["self"]):
        raise MixesSamples("fills a tensor with a value of a batch")
    if op.name.endswith("_like") and (shard := op.shard(op["self"])) is not None:
        return op.same_layout_for_all(shard)
    return op.same_layout_for_all(constant(op))


def constant(op: OperatorCall) -> Layout:
    """Return the layout of an output with equal values for all samples."""
    scaled = op.scaled_dims()
    if len(scaled) > 1:
        raise MixesSamples("has a row and a column for each sample")
    if not scaled:
        return None
    size = op.outputs[0].shape[scaled[0]]
    if size % op.num_samples:
        raise MixesSamples("has a size that is no multiple of the number of samples")
    return Shard(scaled[0], size // op.num_samples)


def arange(op: OperatorCall) -> list[Layout]:
    """Return the sample index for a range over the samples; refuse other uses of the batch size."""
    if not op.scaled_dims():
        return [None]
    step = 1 if op["step"] is None else op["step"]
    counts_samples = isinstance(step, int) and step > 0 and op["start"] in (None, 0)
    if counts_samples and op.outputs[0].numel() == op.num_samples:
        return [SampleIndex(0, step)]
    raise MixesSamples("numbers the samples")


def only_replicated(op: OperatorCall) -> list[Layout]:
    """Return replicated outputs, as replicated inputs give each shard the same."""
    if op.outputs and any(op.scaled_dims(number) for number in range(len(op.outputs))):
        raise MixesSamples("makes a tensor whose size depends on the number of samples")
    return op.same_layout_for_all(None)


def table_lookup(op: OperatorCall) -> list[Layout]:
    """Look up each element in a replicated table (bucketize, searchsorted, isin)."""
    names = ("boundaries", "sorted_sequence", "test_elements", "sorter")
    if any(op.layout(op[name]) is not None for name in names):
        raise MixesSamples("looks up values in a batch")
    elements = op["elements"] if op["elements"] is not None else op["self"]
    shard = op.shard(elements) if isinstance(elements, torch.Tensor) else None
    table = op["sorted_sequence"]
    if shard is not None and isinstance(table, torch.Tensor) and table.dim() > 1:
        raise MixesSamples("combines a batch with a tensor that has rows of its own")
    return op.same_layout_for_all(shard)


def as_complex(op: OperatorCall) -> list[Layout]:
    """Apply view_as_complex or view_as_real, which pair numbers in the last dimension."""
    shard = op.shard(op["self"])
    if shard is not None and op.name == "view_as_complex" and shard.dim == op["self"].dim() - 1:
        raise MixesSamples("makes numbers of two samples each")
    return [shard]
