"""Checks of indices before a compiled function reads memory by them.

Inductor's loops check them, too, but an exception within several threads ends the process; with
torch 2.11, in one thread as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.fx import Node

from cputrain.step.model_tensors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
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

WITHIN_BOUNDS = {
    aten.argmax.default, aten.argmin.default, aten.argsort.default, aten.sort.default,
    aten.topk.default, aten.max.dim, aten.min.dim, aten.arange.default, aten.arange.start,
    aten.arange.start_step,
}  # fmt: skip
"""Operators that return indices which need no check."""


class _Bound(NamedTuple):
    path: list[Node]
    """From an argument of the graph to the index."""

    low: int
    high: int
    ignored: int | None


class IndexBounds:
    """The indices among the arguments of a graph. Raises CompileError for those that it computes.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: GraphModule) -> None:
        placeholders = graph.graph.find_nodes(op="placeholder")
        self._position = {node: number for number, node in enumerate(placeholders)}
        bounds: dict[Any, _Bound] = {}
        for node in graph.graph.nodes:
            for index, low, high, ignored in _indices(node):
                path = _path_to(index)
                if path is not None:
                    bounds[index, low, high, ignored] = _Bound(path, low, high, ignored)
        self._bounds = list(bounds.values())

    def are_met(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether all indices are within their bounds."""
        return all(self._is_met(bound, tensors) for bound in self._bounds)

    def _is_met(self, bound: _Bound, tensors: Sequence[Tensor]) -> bool:
        index = tensors[self._position[bound.path[0]]]
        for node in bound.path[1:]:
            target: Callable[..., Tensor] = node.target  # type: ignore[assignment]
            index = target(index, *node.args[1:], **node.kwargs)
        if bound.ignored is not None:
            index = index[index != bound.ignored]
        if not index.numel():
            return True
        least, largest = torch.aminmax(index)
        return bound.low <= int(least) and int(largest) < bound.high


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


def _path_to(index: Node) -> list[Node] | None:
    """Return the nodes from an argument of the graph to an index; None if it needs no check.

    Raises CompileError.
    """
    path = [index]
    while path[0].target in RESHAPED:
        first = path[0].args[0]
        assert isinstance(first, Node)
        path.insert(0, first)
    node = path[0]
    if node.op == "placeholder":
        return path
    source = node.args[0] if getattr(node.target, "__name__", "") == "getitem" else node
    if isinstance(source, Node) and source.target in WITHIN_BOUNDS:
        return None
    raise CompileError(f"it computes indices, by {getattr(source, 'target', source)}")
