"""Checks of indices before a compiled function reads memory by them.

Inductor's loops check them, too, but an exception within several threads ends the process; with
torch 2.11, in one thread as well.
"""

from __future__ import annotations

from operator import getitem
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.fx import Node

from cputrain.step.model_tensors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any

    from torch import Tensor
    from torch.fx import GraphModule

aten = torch.ops.aten

INDEXED: dict[Any, tuple[int, Callable[[Any], int]]] = {
    aten.embedding.default: (1, lambda args: args[0].shape[0]),
    aten.nll_loss_forward.default: (1, lambda args: args[0].shape[-1]),
    aten.nll_loss2d_forward.default: (1, lambda args: args[0].shape[1]),
    aten.gather.default: (2, lambda args: _size(args)),
    aten.index_select.default: (2, lambda args: _size(args)),
    aten.index_add.default: (2, lambda args: _size(args)),
    aten.index_add_.default: (2, lambda args: _size(args)),
    aten.scatter.src: (2, lambda args: _size(args)),
    aten.scatter.value: (2, lambda args: _size(args)),
    aten.scatter_.src: (2, lambda args: _size(args)),
    aten.scatter_.value: (2, lambda args: _size(args)),
    aten.scatter_add.default: (2, lambda args: _size(args)),
    aten.scatter_add_.default: (2, lambda args: _size(args)),
}
"""Operators with an index: its position among the arguments, and the size that bounds it."""

WRAPPED = {
    aten.index_select.default, aten.index_add.default, aten.index_add_.default,
}  # fmt: skip
"""Operators that Inductor lets take negative indices, which torch does not."""

INDEXED_BY_LISTS = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default}
"""Operators with an index for each dimension, which may be negative."""

IGNORED = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}
"""Operators whose last argument is an index to ignore."""

RESHAPED = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default,
    aten.squeeze.dim, aten.squeeze.default, aten.expand.default, aten.clone.default,
    aten._to_copy.default, aten.permute.default, aten.transpose.int, aten.t.default,
    aten.select.int, aten.slice.Tensor, aten.detach.default, aten.alias.default,
}  # fmt: skip
"""Operators that return numbers of their argument."""

ELEMENTWISE = {
    aten.where.self, aten.ne.Scalar, aten.eq.Scalar, aten.lt.Scalar, aten.le.Scalar,
    aten.gt.Scalar, aten.ge.Scalar, aten.ne.Tensor, aten.eq.Tensor, aten.lt.Tensor,
    aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor, aten.logical_and.default,
    aten.logical_or.default, aten.logical_not.default, aten.bitwise_and.Scalar,
    aten.bitwise_and.Tensor, aten.abs.default, aten.neg.default, aten.floor.default,
    aten.ceil.default, aten.round.default, aten.trunc.default, aten.add.Tensor, aten.sub.Tensor,
    aten.rsub.Scalar, aten.mul.Tensor, aten.mul.Scalar, aten.add.Scalar, aten.sub.Scalar,
    aten.div.Tensor_mode, aten.floor_divide.default, aten.remainder.Scalar,
    aten.remainder.Tensor, aten.fmod.Scalar, aten.clamp.default, aten.clamp_min.default,
    aten.clamp_max.default, aten.minimum.default, aten.maximum.default,
}  # fmt: skip
"""Operators that compiled code computes to the same bits, and that cost little to compute twice."""

CONSTANT = {
    aten.arange.default, aten.arange.start, aten.arange.start_step, aten.scalar_tensor.default,
    aten.full.default, aten.zeros.default, aten.ones.default,
}  # fmt: skip
"""Operators without tensors among their arguments."""

POSITIONS = {
    aten.argmax.default, aten.argmin.default, aten.argsort.default, aten.sort.default,
    aten.topk.default, aten.max.dim, aten.min.dim,
}  # fmt: skip
"""Operators that return positions along a dimension of their argument."""

MAX_OPERATORS = 16
"""Largest number of operators that are computed to check an index."""


class _Bound(NamedTuple):
    node: Node
    """The index."""

    nodes: list[Node]
    """What computes the index from arguments of the graph, in order."""

    low: int
    high: int
    ignored: int | None


class IndexBounds:
    """The indices of a graph that its arguments decide.

    Raises CompileError for those of which nothing is known before the graph has run.

    Args:
        graph: The graph.
        operators: Operators whose indices are checked; None for all.
    """

    def __init__(self, graph: GraphModule, operators: Collection[object] | None = None) -> None:
        self._graph = graph
        placeholders = graph.graph.find_nodes(op="placeholder")
        self._position = {node: number for number, node in enumerate(placeholders)}
        bounds: dict[Any, _Bound] = {}
        for node in graph.graph.nodes:
            if operators is not None and node.target not in operators:
                continue
            for index, low, high, ignored in _indices(node):
                bound = self._bound(index, low, high, ignored)
                if bound is not None:
                    bounds[bound.node, bound.low, bound.high, ignored] = bound
        self._bounds = list(bounds.values())

    def _bound(self, index: Node, low: int, high: int, ignored: int | None) -> _Bound | None:
        """Return what is to be checked; None if the index is within its bounds in any case."""
        index = _source(index)
        if (shifted := self._shift(index)) is not None:
            # rows of several tables in one, as vmap has them: an index must not leave its table
            index, shifts = shifted
            gaps = shifts.diff()
            high = min(high - int(shifts[-1]), int(gaps.min()) if len(gaps) else high)
            low -= int(shifts[0])
            index = _source(index)
        limits = _limits(index)
        if limits is not None:
            if low <= limits[0] and limits[1] < high:
                return None
            raise CompileError(f"it computes indices, by {index.target}, that may be too large")
        bound = _Bound(index, _nodes_for(index), low, high, ignored)
        if any(node.op == "placeholder" for node in bound.nodes):
            return bound
        if self._is_met(bound, ()):
            return None
        raise CompileError(f"an index is out of bounds for {high} numbers")

    def _shift(self, index: Node) -> tuple[Node, Tensor] | None:
        """Return the index and the sorted constants that are added to it; None if none are."""
        if index.target is not aten.add.Tensor or index.kwargs:
            return None
        varying, constant = index.args
        if not isinstance(varying, Node) or not isinstance(constant, Node):
            return None
        nodes = _nodes_for(constant)
        if any(node.op == "placeholder" for node in nodes):
            return None
        return varying, torch.unique(self._value(constant, nodes, ()))

    def are_met(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether all indices are within their bounds."""
        return all(self._is_met(bound, tensors) for bound in self._bounds)

    def _is_met(self, bound: _Bound, tensors: Sequence[Tensor]) -> bool:
        index = self._value(bound.node, bound.nodes, tensors)
        if bound.ignored is not None:
            index = index[index != bound.ignored]
        if not index.numel():
            return True
        least, largest = torch.aminmax(index)
        return bound.low <= int(least) and int(largest) < bound.high

    def _value(self, index: Node, nodes: list[Node], tensors: Sequence[Tensor]) -> Tensor:
        """Compute an index."""
        values: dict[Any, Tensor] = {}
        for node in nodes:
            if node.op == "placeholder":
                values[node] = tensors[self._position[node]]
            elif node.op == "get_attr":
                values[node] = getattr(self._graph, str(node.target))
            else:
                target: Callable[..., Tensor] = node.target  # type: ignore[assignment]
                args = [values[arg] if isinstance(arg, Node) else arg for arg in node.args]
                values[node] = target(*args, **node.kwargs)
        return values[index]


def _size(args: Any) -> int:
    shape: torch.Size = args[0].shape
    return int(shape[args[1]]) if shape else 1


def _indices(node: Node) -> Iterator[tuple[Node, int, int, int | None]]:
    """Yield indices of an operator with their bounds, and the index that it ignores."""
    if node.op != "call_function":
        return
    values: list[Any] = [arg.meta.get("val") if isinstance(arg, Node) else arg for arg in node.args]
    if node.target in INDEXED:
        position, size = INDEXED[node.target]
        index = node.args[position]
        assert isinstance(index, Node)
        ignored = values[-1] if node.target in IGNORED else None
        yield index, 0, size(values), ignored
    elif node.target in INDEXED_BY_LISTS:
        for dim, index in enumerate(node.args[1]):  # type: ignore[arg-type]
            if isinstance(index, Node):
                high = values[0].shape[dim]
                yield index, -high, high, None


def _source(index: Node) -> Node:
    """Return the node that has the numbers of an index in another shape."""
    while index.target in RESHAPED and index.target is not aten._to_copy.default:
        first = index.args[0]
        assert isinstance(first, Node)
        index = first
    return index


def _limits(index: Node) -> tuple[int, int] | None:
    """Return the least and the largest number that an index can be, if its operator tells."""
    source = index
    if index.target is getitem and index.args[1] == 1:
        source = index.args[0]  # type: ignore[assignment]
    if source.target in POSITIONS:
        first, *others = source.args
        shape = first.meta["val"].shape  # type: ignore[union-attr]
        position = 1 if source.target is aten.topk.default else 0
        default = None if source.target in (aten.argmax.default, aten.argmin.default) else -1
        dim = others[position] if len(others) > position else source.kwargs.get("dim", default)
        size = shape.numel() if dim is None else shape[dim] if shape else 1
        return 0, int(size) - 1
    if source.target is aten.clamp.default:
        _, low, high = (*source.args, None, None)[:3]
        if isinstance(low, int) and isinstance(high, int):
            return min(low, high), high
    return None


def _nodes_for(index: Node) -> list[Node]:
    """Return the nodes that compute an index from arguments of the graph, in order.

    Raises CompileError.
    """
    nodes: dict[Node, None] = {}
    _add_nodes(index, nodes)
    if len(nodes) > MAX_OPERATORS:
        raise CompileError(f"it computes indices, by {MAX_OPERATORS} operators or more")
    return list(nodes)


def _add_nodes(node: Node, nodes: dict[Node, None]) -> None:
    """Add a node behind those that it needs."""
    if node in nodes:
        return
    if node.op not in ("placeholder", "get_attr"):
        if node.target not in RESHAPED | ELEMENTWISE | CONSTANT or len(nodes) > MAX_OPERATORS:
            raise CompileError(f"it computes indices, by {node.target}")
        for needed in node.all_input_nodes:
            _add_nodes(needed, nodes)
    nodes[node] = None
