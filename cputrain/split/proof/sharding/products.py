"""Products, convolutions, normalisation, attention and recurrent layers."""

from __future__ import annotations

import torch

from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    Operator,
    Shard,
    common_layout,
)


def matmul(op: Operator, left: str, right: str, added: str | None = None) -> list[Layout]:
    """Products of matrices, or of stacks of them."""
    one, other = op[left], op[right]
    a, b = op.shard(one), op.shard(other)
    found: Shard | None = None
    rows, columns = one.dim() - 2, other.dim() - 1
    if a is not None and b is not None:
        if a != b or a.dim >= rows or one.dim() < 3:
            raise MixesSamples("multiplies and adds over the samples")
        found = a
    elif a is not None:
        if a.dim == one.dim() - 1:
            raise MixesSamples("adds over the samples")
        if a.dim < rows and other.dim() > 2:
            raise MixesSamples("combines a batch with a tensor that has rows of its own")
        found = a
    elif b is not None:
        if b.dim != columns:
            raise MixesSamples("adds over the samples")
        found = b._replace(dim=op.outputs[0].dim() - 1)
    if added is not None and (bias := op.shard(op[added])) is not None:
        target = op.outputs[0].dim() - op[added].dim()
        if bias._replace(dim=bias.dim + target) != found:
            raise MixesSamples("adds a batch to what has none")
    return [found]


def matrix_vector(op: Operator) -> list[Layout]:
    vector = op["vec"] if op["vec"] is not None else op["tensor"]
    if op.shard(vector) is not None:
        raise MixesSamples("adds over the samples")
    matrix = op["mat"] if op["mat"] is not None else op["self"]
    shard = op.shard(matrix)
    if shard is not None and shard.dim != 0:
        raise MixesSamples("adds over the samples")
    return [shard]


def linear(op: Operator) -> list[Layout]:
    tensor = op["input"] if op["input"] is not None else op["self"]
    return _weighted(op, tensor, tensor.dim() - 1)


def convolution(op: Operator) -> list[Layout]:
    tensor = op["input"] if op["input"] is not None else op["self"]
    return _weighted(op, tensor, 1)


def _weighted(op: Operator, tensor: torch.Tensor, first: int) -> list[Layout]:
    """A batch and weights: the dimensions from `first` on are worked on."""
    shard = op.shard(tensor)
    if any(op.layout(other) is not None for other in op.tensors if other is not tensor):
        raise MixesSamples("is given weights that depend on the batch")
    if shard is not None and shard.dim >= first:
        raise MixesSamples("works across the batch")
    return op.everywhere(shard)


def layer_norm(op: Operator) -> list[Layout]:
    return _weighted(op, op["input"], op["input"].dim() - len(op["normalized_shape"]))


def group_norm(op: Operator) -> list[Layout]:
    return _weighted(op, op["input"], 1)


def batch_norm(op: Operator) -> list[Layout]:
    """In evaluation, or over channels that belong to one sample each (instance norm)."""
    tensor = op["input"]
    shard = op.shard(tensor)
    training = op["training"] if op["training"] is not None else op["train"]
    others = [op.shard(other) for other in op.tensors if other is not tensor]
    if shard is None:
        if any(others):
            raise MixesSamples("is given statistics of a batch")
        return op.everywhere(None)
    if training and shard.dim != 1:
        raise MixesSamples("normalises over the batch by a function that cannot be divided")
    if shard.dim != 1 and any(others):
        raise MixesSamples("is given statistics of a batch")
    statistics: Layout = Shard(0, shard.inner) if shard.dim == 1 else None
    return [shard, *[statistics] * (len(op.outputs) - 1)]


def first_dim(op: Operator, *weights: str) -> list[Layout]:
    """Samples come first in each input and output; named arguments may be replicated."""
    found = common_layout([op.shard(tensor) for tensor in op.tensors])
    if found is None:
        return op.everywhere(None)
    if not isinstance(found, Shard) or found.dim != 0:
        raise MixesSamples("needs samples in the first dimension")
    for name, value in op.arguments.items():
        if isinstance(value, torch.Tensor) and (op.layout(value) is not None) == (name in weights):
            raise MixesSamples("combines a batch with a tensor that has rows of its own")
    return [found if _scales(op, number) else None for number in range(len(op.outputs))]


def _scales(op: Operator, number: int) -> bool:
    output = op.outputs[number]
    return bool(output.dim()) and (op.reference is None or 0 in op.scaled_dims(number))


def attention(op: Operator) -> list[Layout]:
    layouts = [op.shard(op[name]) for name in ("query", "key", "value")]
    found = common_layout(layouts)
    if found is None:
        return op.everywhere(None)
    assert isinstance(found, Shard)
    if None in layouts or found.dim >= op["query"].dim() - 2:
        raise MixesSamples("attends over the batch")
    for name in ("attn_mask", "attn_bias"):
        mask = op[name]
        if mask is None:
            continue
        dim = found.dim - op["query"].dim() + mask.dim()
        shard = op.shard(mask)
        if shard is None:
            if dim >= 0 and mask.shape[dim] != 1:
                raise MixesSamples("combines a batch with a tensor that has rows of its own")
        elif shard._replace(dim=shard.dim + op["query"].dim() - mask.dim()) != found:
            raise MixesSamples("attends over the batch")
    if op["dropout_p"]:
        raise MixesSamples("draws random numbers inside of one operator")
    return [found, *[Opaque()] * (len(op.outputs) - 1)]


def cudnn_recurrent(op: Operator) -> list[Layout]:
    """_cudnn_rnn: hidden states have layers first, then samples."""
    shard = op.shard(op["input"])
    hidden = [op.shard(op[name]) for name in ("hx", "cx") if op[name] is not None]
    weights = [op[name] for name in ("weight_buf", "dropout_state")] + list(op["weight"])
    if any(op.layout(one) is not None for one in weights if one is not None):
        raise MixesSamples("is given weights that depend on the batch")
    if shard is None:
        if any(hidden):
            raise MixesSamples("combines a batch with what has none")
        return op.everywhere(None)
    if op["dropout"] and op["train"]:
        raise MixesSamples("draws random numbers inside of one operator")
    if op["batch_sizes"] or shard.dim != (0 if op["batch_first"] else 1):
        raise MixesSamples("needs samples in their own dimension")
    if any(one != Shard(1, shard.inner) for one in hidden):
        raise MixesSamples("needs samples in the second dimension")
    last = Shard(1, shard.inner)
    return [shard, last, last if op["cx"] is not None else None, Opaque(), Opaque()]


def recurrent(op: Operator) -> list[Layout]:
    """mkldnn_rnn_layer: time comes first, then samples."""
    shard = op.shard(op["input"])
    hidden = [op.shard(op[name]) for name in ("hx_", "cx_")]
    if shard is None:
        if any(hidden):
            raise MixesSamples("combines a batch with what has none")
        return op.everywhere(None)
    weights = [op[f"weight{number}"] for number in range(4)]
    if any(op.layout(weight) is not None for weight in weights):
        raise MixesSamples("is given weights that depend on the batch")
    if shard.dim != 1 or any(one != Shard(0, shard.inner) for one in hidden):
        raise MixesSamples("needs samples in the second dimension")
    return [shard, Shard(0, shard.inner), Shard(0, shard.inner), Opaque()]
