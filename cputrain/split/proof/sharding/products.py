"""Rules of matrix products, convolutions, normalisation, attention and recurrent layers."""

from __future__ import annotations

import torch

from cputrain.split.proof.sharding.layout import (
    Layout,
    MixesSamples,
    Opaque,
    OperatorCall,
    Shard,
    common_layout,
)


def matmul(
    op: OperatorCall, left_name: str, right_name: str, bias_name: str | None = None
) -> list[Layout]:
    """Multiply matrices or batches of matrices, with an optional added bias."""
    left, right = op[left_name], op[right_name]
    left_shard, right_shard = op.shard(left), op.shard(right)
    result: Shard | None = None
    rows, columns = left.dim() - 2, right.dim() - 1
    if left_shard is not None and right_shard is not None:
        if left_shard != right_shard or left_shard.dim >= rows or left.dim() < 3:
            raise MixesSamples("multiplies and adds over the samples")
        result = left_shard
    elif left_shard is not None:
        if left_shard.dim == left.dim() - 1:
            raise MixesSamples("adds over the samples")
        if left_shard.dim < rows and right.dim() > 2:
            raise MixesSamples("combines a batch with a tensor that has rows of its own")
        result = left_shard
    elif right_shard is not None:
        if right_shard.dim != columns:
            raise MixesSamples("adds over the samples")
        result = right_shard._replace(dim=op.outputs[0].dim() - 1)
    if bias_name is not None and (bias := op.shard(op[bias_name])) is not None:
        offset = op.outputs[0].dim() - op[bias_name].dim()
        if bias._replace(dim=bias.dim + offset) != result:
            raise MixesSamples("adds a batch to what has none")
    return [result]


def matrix_vector(op: OperatorCall) -> list[Layout]:
    """Multiply a sharded matrix by a replicated vector."""
    vector = op["vec"] if op["vec"] is not None else op["tensor"]
    if op.shard(vector) is not None:
        raise MixesSamples("adds over the samples")
    matrix = op["mat"] if op["mat"] is not None else op["self"]
    shard = op.shard(matrix)
    if shard is not None and shard.dim != 0:
        raise MixesSamples("adds over the samples")
    return [shard]


def linear(op: OperatorCall) -> list[Layout]:
    """Apply a linear layer to the last dimension."""
    tensor = op["input"] if op["input"] is not None else op["self"]
    return _with_replicated_weights(op, tensor, tensor.dim() - 1)


def convolution(op: OperatorCall) -> list[Layout]:
    """Apply a convolution with replicated weights to all dimensions but the first."""
    tensor = op["input"] if op["input"] is not None else op["self"]
    return _with_replicated_weights(op, tensor, 1)


def _with_replicated_weights(op: OperatorCall, tensor: torch.Tensor, first: int) -> list[Layout]:
    """Check that weights are replicated and the batch comes before dimension `first`."""
    shard = op.shard(tensor)
    if any(op.layout(weight) is not None for weight in op.tensors if weight is not tensor):
        raise MixesSamples("is given weights that depend on the batch")
    if shard is not None and shard.dim >= first:
        raise MixesSamples("works across the batch")
    return op.same_layout_for_all(shard)


def layer_norm(op: OperatorCall) -> list[Layout]:
    """Normalise over the last dimensions."""
    return _with_replicated_weights(
        op, op["input"], op["input"].dim() - len(op["normalized_shape"])
    )


def group_norm(op: OperatorCall) -> list[Layout]:
    """Normalise over all dimensions but the first."""
    return _with_replicated_weights(op, op["input"], 1)


def batch_norm(op: OperatorCall) -> list[Layout]:
    """Normalise in evaluation mode, or over channels of a single sample (instance norm)."""
    tensor = op["input"]
    shard = op.shard(tensor)
    training = op["training"] if op["training"] is not None else op["train"]
    statistic_shards = [op.shard(statistic) for statistic in op.tensors if statistic is not tensor]
    if shard is None:
        if any(statistic_shards):
            raise MixesSamples("is given statistics of a batch")
        return op.same_layout_for_all(None)
    if training and shard.dim != 1:
        raise MixesSamples("normalises over the batch by a function that cannot be divided")
    if shard.dim != 1 and any(statistic_shards):
        raise MixesSamples("is given statistics of a batch")
    statistics: Layout = Shard(0, shard.inner) if shard.dim == 1 else None
    return [shard, *[statistics] * (len(op.outputs) - 1)]


def first_dim(op: OperatorCall, *weights: str) -> list[Layout]:
    """Require samples in dimension 0 of each input and output; `weights` are replicated."""
    shard = common_layout([op.shard(tensor) for tensor in op.tensors])
    if shard is None:
        return op.same_layout_for_all(None)
    if not isinstance(shard, Shard) or shard.dim != 0:
        raise MixesSamples("needs samples in the first dimension")
    for name, value in op.arguments.items():
        if isinstance(value, torch.Tensor) and (op.layout(value) is not None) == (name in weights):
            raise MixesSamples("combines a batch with a tensor that has rows of its own")
    return [shard if _grows_with_batch(op, number) else None for number in range(len(op.outputs))]


def _grows_with_batch(op: OperatorCall, number: int) -> bool:
    """Return whether dimension 0 of an output grows with the batch."""
    output = op.outputs[number]
    return bool(output.dim()) and (op.reference is None or 0 in op.scaled_dims(number))


def attention(op: OperatorCall) -> list[Layout]:
    """Attend within each sample, with a batch dimension before the last two."""
    layouts = [op.shard(op[name]) for name in ("query", "key", "value")]
    shard = common_layout(layouts)
    if shard is None:
        return op.same_layout_for_all(None)
    assert isinstance(shard, Shard)
    if None in layouts or shard.dim >= op["query"].dim() - 2:
        raise MixesSamples("attends over the batch")
    for name in ("attn_mask", "attn_bias"):
        mask = op[name]
        if mask is None:
            continue
        dim = shard.dim - op["query"].dim() + mask.dim()
        mask_shard = op.shard(mask)
        if mask_shard is None:
            if dim >= 0 and mask.shape[dim] != 1:
                raise MixesSamples("combines a batch with a tensor that has rows of its own")
        elif mask_shard._replace(dim=mask_shard.dim + op["query"].dim() - mask.dim()) != shard:
            raise MixesSamples("attends over the batch")
    if op["dropout_p"]:
        raise MixesSamples("draws random numbers inside of one operator")
    return [shard, *[Opaque()] * (len(op.outputs) - 1)]


def cudnn_recurrent(op: OperatorCall) -> list[Layout]:
    """Apply _cudnn_rnn, whose hidden states have the shape (layers, samples, features)."""
    shard = op.shard(op["input"])
    hidden = [op.shard(op[name]) for name in ("hx", "cx") if op[name] is not None]
    weights = [op[name] for name in ("weight_buf", "dropout_state")] + list(op["weight"])
    if any(op.layout(tensor) is not None for tensor in weights if tensor is not None):
        raise MixesSamples("is given weights that depend on the batch")
    if shard is None:
        if any(hidden):
            raise MixesSamples("combines a batch with what has none")
        return op.same_layout_for_all(None)
    if op["dropout"] and op["train"]:
        raise MixesSamples("draws random numbers inside of one operator")
    if op["batch_sizes"] or shard.dim != (0 if op["batch_first"] else 1):
        raise MixesSamples("needs samples in their own dimension")
    if any(tensor != Shard(1, shard.inner) for tensor in hidden):
        raise MixesSamples("needs samples in the second dimension")
    last = Shard(1, shard.inner)
    return [shard, last, last if op["cx"] is not None else None, Opaque(), Opaque()]


def recurrent(op: OperatorCall) -> list[Layout]:
    """Apply mkldnn_rnn_layer, whose input has the shape (time, samples, features)."""
    shard = op.shard(op["input"])
    hidden = [op.shard(op[name]) for name in ("hx_", "cx_")]
    if shard is None:
        if any(hidden):
            raise MixesSamples("combines a batch with what has none")
        return op.same_layout_for_all(None)
    weights = [op[f"weight{number}"] for number in range(4)]
    if any(op.layout(weight) is not None for weight in weights):
        raise MixesSamples("is given weights that depend on the batch")
    if shard.dim != 1 or any(hidden_shard != Shard(0, shard.inner) for hidden_shard in hidden):
        raise MixesSamples("needs samples in the second dimension")
    return [shard, Shard(0, shard.inner), Shard(0, shard.inner), Opaque()]
