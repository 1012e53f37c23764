"""Operators that make each element from single ones, and constants."""

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
)

COPIES = frozenset({"_to_copy", "clone", "detach", "alias", "lift_fresh", "lift", "to"})


def pointwise(op: Operator) -> list[Layout]:
    """Broadcast: dimensions are aligned at their ends."""
    num_dims = op.outputs[0].dim() if op.outputs else 0
    if any(isinstance(op.layout(tensor), Reduced) for tensor in op.tensors):
        return _of_losses(op)
    sharded: list[Layout] = []
    for tensor in op.tensors:
        layout = op.layout(tensor)
        if isinstance(layout, SampleIndex) and op.name in COPIES:
            sharded.append(layout._replace(dim=layout.dim + num_dims - tensor.dim()))
        elif isinstance(layout, Opaque) and op.name in COPIES:
            return [layout]
        elif (shard := op.shard(tensor)) is not None:
            if not op.outputs:
                raise MixesSamples("reads the values of samples")
            dim = shard.dim + num_dims - tensor.dim()
            if tensor.shape[shard.dim] != op.outputs[0].shape[dim]:
                raise MixesSamples("repeats a batch of another size")
            sharded.append(shard._replace(dim=dim))
    found = common_layout(sharded)
    if isinstance(found, Shard):
        for tensor in op.tensors:
            dim = found.dim - num_dims + tensor.dim()
            if op.layout(tensor) is None and dim >= 0 and tensor.shape[dim] != 1:
                raise MixesSamples("combines a batch with a tensor that has rows of its own")
    return op.everywhere(found)


def _of_losses(op: Operator) -> list[Layout]:
    """A function of losses alone; what else learns would get its gradient from every replica."""
    for tensor in op.tensors:
        layout = op.layout(tensor)
        if not isinstance(layout, Reduced) and (layout is not None or tensor.requires_grad):
            raise MixesSamples("combines a loss of the whole batch with what is none")
    return op.everywhere(Reduced())


def factory(op: Operator) -> list[Layout]:
    """A constant may have a row for each sample, as it is the same in all of them."""
    if any(op.layout(tensor) is not None for tensor in op.tensors if tensor is not op["self"]):
        raise MixesSamples("fills a tensor with a value of a batch")
    if op.name.endswith("_like") and (shard := op.shard(op["self"])) is not None:
        return op.everywhere(shard)
    return op.everywhere(constant(op))


def constant(op: Operator) -> Layout:
    """Return the layout of an output that has the same for each sample."""
    scaled = op.scaled_dims()
    if len(scaled) > 1:
        raise MixesSamples("has a row and a column for each sample")
    if not scaled:
        return None
    size = op.outputs[0].shape[scaled[0]]
    if size % op.num_samples:
        raise MixesSamples("has a size that is no multiple of the number of samples")
    return Shard(scaled[0], size // op.num_samples)


def arange(op: Operator) -> list[Layout]:
    if not op.scaled_dims():
        return [None]
    step = 1 if op["step"] is None else op["step"]
    is_whole = isinstance(step, int) and step > 0 and op["start"] in (None, 0)
    if is_whole and op.outputs[0].numel() == op.num_samples:
        return [SampleIndex(0, step)]
    raise MixesSamples("numbers the samples")


def only_replicated(op: Operator) -> list[Layout]:
    """Everything that is the same for every shard gives the same for every shard."""
    if op.outputs and any(op.scaled_dims(number) for number in range(len(op.outputs))):
        raise MixesSamples("makes a tensor whose size depends on the number of samples")
    return op.everywhere(None)


def looked_up(op: Operator) -> list[Layout]:
    """Each element is looked up in a table that all samples share."""
    names = ("boundaries", "sorted_sequence", "test_elements", "sorter")
    if any(op.layout(op[name]) is not None for name in names):
        raise MixesSamples("looks up values in a batch")
    elements = op["elements"] if op["elements"] is not None else op["self"]
    shard = op.shard(elements) if isinstance(elements, torch.Tensor) else None
    table = op["sorted_sequence"]
    if shard is not None and isinstance(table, torch.Tensor) and table.dim() > 1:
        raise MixesSamples("combines a batch with a tensor that has rows of its own")
    return op.everywhere(shard)


def as_complex(op: Operator) -> list[Layout]:
    """view_as_complex, view_as_real: two numbers in the last dimension are one."""
    shard = op.shard(op["self"])
    if shard is not None and op.name == "view_as_complex" and shard.dim == op["self"].dim() - 1:
        raise MixesSamples("makes numbers of two samples each")
    return [shard]
