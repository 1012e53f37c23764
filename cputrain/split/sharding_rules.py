"""How each operator carries the samples of a batch from its inputs to its outputs.

A rule is given an operator with its arguments and returns the layout of each output, or raises
`MixesSamples` where an output of one sample would depend on another one. An operator without a rule
is refused as soon as a sharded tensor reaches it: what is not known to keep samples apart does not
count as keeping them apart.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import NamedTuple

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Shape = Sequence[int]


class Shard(NamedTuple):
    """Samples lie along one dimension, whose index is (o * num_samples + sample) * inner + i."""

    dim: int
    inner: int = 1
    """Entries of one sample that lie side by side in that dimension."""


class SampleIndex(NamedTuple):
    """Whole numbers along one dimension: sample * step, as `torch.arange` makes them."""

    dim: int
    step: int = 1


class Opaque(NamedTuple):
    """An output that only a backward reads, a workspace for example."""


class Reduced(NamedTuple):
    """One number of the whole batch that all replicas have; gradients go to each one's samples."""


Layout = Shard | SampleIndex | Opaque | Reduced | None
"""None: replicated, the same for every shard of the batch."""


class MixesSamples(Exception):  # noqa: N818  (a finding; nothing has failed)
    """What the operator does with the batch, as the end of a sentence about it."""


class Operator:
    """A call of an operator: its arguments by name, their layouts, and its outputs."""

    def __init__(
        self,
        name: str,
        arguments: dict[str, Any],
        layouts: dict[int, Layout],
        outputs: Sequence[torch.Tensor],
        num_samples: int,
        reference: Sequence[Shape] | None,
    ) -> None:
        """`layouts` has every tensor argument by its id.

        `reference` has the outputs' shapes for another number of samples, where that is known.
        """
        self.name = name
        self.arguments = arguments
        self.outputs = outputs
        self.num_samples = num_samples
        self.reference = reference
        self.needs_two_samples = False
        """Whether it does something else with a shard of one sample."""
        self._layouts = layouts

    def __getitem__(self, name: str) -> Any:
        return self.arguments.get(name)

    def layout(self, value: Any) -> Layout:
        return self._layouts[id(value)] if isinstance(value, torch.Tensor) else None

    def shard(self, value: Any) -> Shard | None:
        """Return where the samples of a tensor lie; None where it is replicated."""
        layout = self.layout(value)
        if isinstance(layout, SampleIndex):
            raise MixesSamples("computes with the numbers of samples")
        if isinstance(layout, Opaque):
            raise MixesSamples("reads what was kept for a backward")
        if isinstance(layout, Reduced):
            raise MixesSamples("computes with a loss of the whole batch")
        return layout

    @property
    def tensors(self) -> list[torch.Tensor]:
        found: list[torch.Tensor] = []
        for value in self.arguments.values():
            if isinstance(value, torch.Tensor):
                found.append(value)
            elif isinstance(value, list | tuple):
                found += [one for one in value if isinstance(one, torch.Tensor)]
        return found

    def scaled_dims(self, output: int = 0) -> list[int]:
        """Return the dimensions of an output that grow with the number of samples."""
        shape = self.outputs[output].shape
        if self.reference is None:
            return []
        other = self.reference[output]
        return [dim for dim in range(len(shape)) if shape[dim] != other[dim]]

    def everywhere(self, layout: Layout) -> list[Layout]:
        return [layout] * len(self.outputs)


Rule = "Callable[[Operator], list[Layout]]"


def _dim(dim: int, num_dims: int) -> int:
    return dim + num_dims if dim < 0 else dim


def _together(layouts: Sequence[Layout]) -> Layout:
    """Return the layout that all sharded ones have."""
    found: Layout = None
    for layout in layouts:
        if layout is not None:
            if found is not None and found != layout:
                raise MixesSamples("combines samples that lie in different dimensions")
            found = layout
    return found


# -- one element from one element


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
    found = _together(sharded)
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


# -- tensors made from nothing


def factory(op: Operator) -> list[Layout]:
    """A constant may have a row for each sample, as it is the same in all of them."""
    if any(op.layout(tensor) is not None for tensor in op.tensors if tensor is not op["self"]):
        raise MixesSamples("fills a tensor with a value of a batch")
    if op.name.endswith("_like") and (shard := op.shard(op["self"])) is not None:
        return op.everywhere(shard)
    return op.everywhere(_constant(op))


def _constant(op: Operator) -> Layout:
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


# -- views


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
        one, other = _dim(op["dim0"], num_dims), _dim(op["dim1"], num_dims)
        order[one], order[other] = order[other], order[one]
    else:
        order = [_dim(dim, num_dims) for dim in op["dims"]]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    return [layout._replace(dim=order.index(layout.dim))]


def unsqueeze(op: Operator) -> list[Layout]:
    layout = op.layout(op["self"])
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    at = _dim(op["dim"], op["self"].dim() + 1)
    return [layout._replace(dim=layout.dim + (at <= layout.dim))]


def squeeze(op: Operator) -> list[Layout]:
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    given = op["dim"]
    dims = range(tensor.dim()) if given is None else [given] if isinstance(given, int) else given
    dims = [_dim(dim, tensor.dim()) for dim in dims]
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
        return [_constant(op)]
    if isinstance(layout, Opaque | Reduced):
        return [layout]
    return [layout._replace(dim=layout.dim + target.dim() - tensor.dim())]


def repeat(op: Operator) -> list[Layout]:
    tensor, target = op["self"], op.outputs[0]
    shard = op.shard(tensor)
    if shard is None:
        return [_constant(op)]
    return [shard._replace(dim=shard.dim + target.dim() - tensor.dim())]


def select(op: Operator) -> list[Layout]:
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    dim = _dim(op["dim"], tensor.dim())
    if dim == layout.dim:
        raise MixesSamples("picks one of the samples")
    return [layout._replace(dim=layout.dim - (dim < layout.dim))]


def slice_(op: Operator) -> list[Layout]:
    tensor = op["self"]
    layout = op.layout(tensor)
    if layout is None or isinstance(layout, Opaque | Reduced):
        return [layout]
    dim = _dim(op["dim"] or 0, tensor.dim())
    if dim != layout.dim or op.outputs[0].shape == tensor.shape:
        return [layout]
    if isinstance(layout, SampleIndex):
        raise MixesSamples("takes some of the samples")
    size, step = tensor.shape[dim], op["step"] or 1
    start = min(_dim(op["start"] or 0, size), size)
    end = size if op["end"] is None else min(_dim(op["end"], size), size)
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
    dim = _dim(op["dim"] or 0, tensor.dim())
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
    dim = _dim(op["dim"] or 0, tensor.dim())
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
    if shard is not None and _dim(op["dimension"], op["self"].dim()) == shard.dim:
        raise MixesSamples("slides over the samples")
    return [shard]


def diagonal(op: Operator) -> list[Layout]:
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return [None]
    gone = {_dim(op[name] or 0, tensor.dim()) for name in ("dim1", "dim2")}
    if op["dim2"] is None:
        gone = {0, 1}
    if shard.dim in gone:
        raise MixesSamples("takes a diagonal over the samples")
    return [shard._replace(dim=shard.dim - sum(dim < shard.dim for dim in gone))]


def as_complex(op: Operator) -> list[Layout]:
    """view_as_complex, view_as_real: two numbers in the last dimension are one."""
    shard = op.shard(op["self"])
    if shard is not None and op.name == "view_as_complex" and shard.dim == op["self"].dim() - 1:
        raise MixesSamples("makes numbers of two samples each")
    return [shard]


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


# -- along dimensions


def along(op: Operator, name: str = "dim", verb: str = "normalises, sorts or adds up") -> Any:
    """Outputs of the same shape, each made from a line of its input."""
    tensor = op["self"]
    shard = op.shard(tensor)
    if shard is None:
        return op.everywhere(None)
    given = op[name]
    dims = [-1] if given is None else [given] if isinstance(given, int) else list(given)
    if shard.dim in [_dim(dim, tensor.dim()) for dim in dims]:
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
    dims = [_dim(dim, tensor.dim()) for dim in dims]
    if shard.dim in dims:
        raise MixesSamples("reduces the batch")
    gone = 0 if op["keepdim"] else sum(dim < shard.dim for dim in dims)
    return op.everywhere(shard._replace(dim=shard.dim - gone))


def trailing(op: Operator, count: int, name: str = "self") -> list[Layout]:
    """The last `count` dimensions are worked on; those before are left alone."""
    tensor = op[name]
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
        dims = [_dim(dim, tensor.dim()) for dim in op["dims"] or range(tensor.dim())]
        if shard.dim in dims:
            raise MixesSamples("changes the order of the samples")
    return [shard]


# -- products


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


# -- normalisation and attention


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
    found = _together([op.shard(tensor) for tensor in op.tensors])
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
    found = _together(layouts)
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


# -- tables and indices


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
    dim = _dim(op["dim"], tensor.dim())
    values = [op[name] for name in ("self", "index", "src") if isinstance(op[name], torch.Tensor)]
    layouts = [op.shard(value) for value in values]
    found = _together(layouts)
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
    dim = _dim(op["dim"], tensor.dim())
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
    dim = _dim(op["dim"], tensor.dim())
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
    found = _together(sharded)
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
    found = _together(layouts)
    if found is None:
        return [None]
    assert isinstance(found, Shard)
    if None in layouts:
        raise MixesSamples("puts a batch beside a tensor that has rows of its own")
    if op.name == "stack":
        at = _dim(op["dim"] or 0, op.outputs[0].dim())
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


# -- losses


def loss(op: Operator) -> list[Layout]:
    if op["reduction"] != 0:
        if all(op.shard(tensor) is None for tensor in op.tensors):
            return op.everywhere(None)
        raise MixesSamples("makes one number of the whole batch, as a loss does")
    return pointwise(op)


def class_loss(op: Operator) -> list[Layout]:
    layouts = [op.shard(op[name]) for name in ("self", "target")]
    found = _together(layouts)
    if found is None:
        return op.everywhere(None)
    assert isinstance(found, Shard)
    if op["reduction"] != 0:
        raise MixesSamples("makes one number of the whole batch, as a loss does")
    if None in layouts or found.dim != 0 or op.layout(op["weight"]) is not None:
        raise MixesSamples("needs samples in the first dimension")
    return [found, Opaque()]


def stops(reason: str) -> Any:
    """Make a rule that refuses whatever is sharded."""

    def rule(op: Operator) -> list[Layout]:
        if any(op.layout(tensor) is not None for tensor in op.tensors):
            raise MixesSamples(reason)
        return only_replicated(op)

    return rule


def nothing(op: Operator) -> list[Layout]:
    """Checks that raise or return nothing."""
    return op.everywhere(None)


COPIES = frozenset({"_to_copy", "clone", "detach", "alias", "lift_fresh", "lift", "to"})

POINTWISE = (
    *COPIES, "copy_", "fill_", "zero_", "_prelu_kernel", "_conj", "resolve_conj", "resolve_neg",
    "real", "imag", "logical_not", "nan_to_num", "lerp", "complex", "polar", "masked_fill",
    "detach_", "lift", "_neg_view", "clamp", "where", "threshold", "hardswish", "copy", "fill",
    "relu6", "log_sigmoid_forward", "requires_grad_", "square", "dropout", "feature_dropout",
)  # fmt: skip

REDUCTIONS = (
    "sum", "mean", "prod", "amax", "amin", "any", "all", "max", "min", "median", "nanmedian",
    "mode", "kthvalue", "argmax", "argmin", "norm", "linalg_vector_norm", "var", "std", "var_mean",
    "std_mean", "logsumexp", "count_nonzero", "aminmax", "nansum", "nanmean",
)  # fmt: skip

ALONG = (
    "_softmax", "_log_softmax", "_safe_softmax", "softmax", "log_softmax", "cumsum", "cumprod",
    "logcumsumexp", "cummax", "cummin", "_cummax_helper", "sort", "argsort", "topk", "glu",
    "linalg_cross",
)  # fmt: skip

TRAILING = {
    **dict.fromkeys(("max_pool1d", "avg_pool1d", "adaptive_avg_pool1d", "adaptive_max_pool1d"), 1),
    **dict.fromkeys(
        ("max_pool2d_with_indices", "avg_pool2d", "_adaptive_avg_pool2d", "adaptive_max_pool2d",
         "upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d", "mkldnn_max_pool2d",
         "_upsample_nearest_exact2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
         "max_pool2d", "adaptive_avg_pool2d", "tril", "triu", "linalg_inv_ex", "linalg_det",
         "_linalg_det", "linalg_cholesky_ex", "matrix_exp", "linalg_matrix_exp", "_linalg_svd",
         "_linalg_eigh", "linalg_qr", "_linalg_slogdet", "linalg_lu_factor_ex"), 2),
    **dict.fromkeys(
        ("max_pool3d_with_indices", "avg_pool3d", "_adaptive_avg_pool3d", "adaptive_max_pool3d",
         "upsample_nearest3d", "upsample_trilinear3d", "_upsample_nearest_exact3d",
         "pixel_shuffle", "pixel_unshuffle", "im2col", "native_channel_shuffle",
         "channel_shuffle"), 3),
    **dict.fromkeys(("upsample_nearest1d", "upsample_linear1d", "_upsample_nearest_exact1d"), 1),
    "col2im": 2,
}  # fmt: skip

FACTORIES = (
    "zeros", "ones", "full", "empty", "scalar_tensor", "new_zeros", "new_ones", "new_full",
    "new_empty", "zeros_like", "ones_like", "full_like", "empty_like", "empty_strided",
    "new_empty_strided", "empty_permuted",
)  # fmt: skip

RULES: dict[str, Any] = {
    **dict.fromkeys(POINTWISE, pointwise),
    **dict.fromkeys(FACTORIES, factory),
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "flatten"), view),
    **dict.fromkeys(("permute", "transpose", "t", "numpy_T", "swapaxes"), permute),
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_chunk", "chunk",
                     "unsafe_split_with_sizes", "split_with_sizes_copy"), split),
    **dict.fromkeys(REDUCTIONS, reduce),
    **dict.fromkeys(ALONG, along),
    **{name: partial(trailing, count=count) for name, count in TRAILING.items()},
    **dict.fromkeys(("constant_pad_nd", "reflection_pad1d", "reflection_pad2d", "reflection_pad3d",
                     "replication_pad1d", "replication_pad2d", "replication_pad3d"), padded),
    **dict.fromkeys(("convolution", "_convolution", "mkldnn_convolution", "conv1d", "conv2d",
                     "conv3d", "convolution_overrideable", "_slow_conv2d_forward",
                     "slow_conv3d_forward", "_nnpack_spatial_convolution"), convolution),
    **dict.fromkeys(("flip", "roll"), dims_of),
    **dict.fromkeys(("gather", "scatter", "scatter_add", "scatter_reduce"), gather),
    **dict.fromkeys(("index_add", "index_copy", "index_fill"), index_fill),
    **dict.fromkeys(("index", "index_put", "_unsafe_index", "_unsafe_index_put",
                     "_index_put_impl_"), index),
    **dict.fromkeys(("cat", "stack", "_cat"), concatenate),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm",
                     "_native_batch_norm_legit_no_training", "_batch_norm_with_update",
                     "miopen_batch_norm"), batch_norm),
    **dict.fromkeys(("native_layer_norm", "_fused_rms_norm"), layer_norm),
    **dict.fromkeys(("_scaled_dot_product_flash_attention_for_cpu",
                     "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_flash_attention",
                     "_scaled_dot_product_cudnn_attention"), attention),
    **dict.fromkeys(("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss",
                     "binary_cross_entropy"), loss),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), class_loss),
    **dict.fromkeys(("_cdist_forward",), distances),
    **dict.fromkeys(("_local_scalar_dense", "equal", "is_nonzero", "item"),
                    stops("reads values of samples, by which the model may decide")),
    **dict.fromkeys(("nonzero", "masked_select", "unique_consecutive", "_unique2", "bincount",
                     "nonzero_static"),
                    stops("has a result whose size depends on values of the batch")),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), partial(along, verb="transforms")),
    **dict.fromkeys(("_assert_async", "_assert_tensor_metadata", "_assert_scalar"), nothing),
    **dict.fromkeys(("view_as_real", "view_as_complex"), as_complex),
    **dict.fromkeys(("bucketize", "searchsorted", "isin"), looked_up),
    "arange": arange,
    "unsqueeze": unsqueeze,
    "squeeze": squeeze,
    "expand": expand,
    "repeat": repeat,
    "select": select,
    "slice": slice_,
    "unbind": unbind,
    "unfold": unfold,
    "as_strided": as_strided,
    "diagonal": diagonal,
    "mm": partial(matmul, left="self", right="mat2"),
    "bmm": partial(matmul, left="self", right="mat2"),
    "addmm": partial(matmul, left="mat1", right="mat2", added="self"),
    "baddbmm": partial(matmul, left="batch1", right="batch2", added="self"),
    "mv": matrix_vector,
    "linear": linear,
    "native_group_norm": group_norm,
    "mkldnn_rnn_layer": recurrent,
    "embedding": embedding,
    "_embedding_bag": embedding_bag,
    "index_select": index_select,
    "grid_sampler_2d": first_dim,
    "grid_sampler_3d": first_dim,
    "affine_grid_generator": first_dim,
}  # fmt: skip
"""By an operator's name, without its overload and without the underscore of the in-place ones."""

SIZES = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "repeat", "slice", "arange",
    "split", "unsafe_split", "split_with_sizes", "unsafe_split_with_sizes", "native_group_norm",
    "affine_grid_generator", "chunk", "unsafe_chunk", "as_strided", *FACTORIES,
})  # fmt: skip
"""Operators whose numbers may depend on the number of samples: their rules look at them."""


SIZE_ARGUMENTS = frozenset({
    "size", "shape", "repeats", "start", "end", "split_size", "split_sizes", "stride", "N",
    "chunks",
})  # fmt: skip
"""Their arguments that may, in proportion to it; all others are the same for each size."""


def rule_of(func: Any) -> Any:
    """Return the rule of an operator, and None for one that is not known."""
    name = base_name(func)
    found = RULES.get(name)
    if found is None and torch.Tag.pointwise in func.tags:
        return pointwise
    return found


def base_name(func: Any) -> str:
    """Return an operator's name without namespace, overload and underscore of in-place ones."""
    name: str = func._schema.name.rpartition("::")[2]
    if name in RULES:
        return name
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
