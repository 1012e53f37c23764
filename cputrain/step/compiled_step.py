"""Compile the graph of a step by Inductor, or replay its operators where there is no compiler."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import torch
from torch.fx import Graph, GraphModule, Node

from cputrain.step.compiler_probes import remember_probes
from cputrain.step.index_bounds import WRAPPED, IndexBounds
from cputrain.step.model_tensors import CompileError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from torch import Tensor

    Compiled: TypeAlias = Callable[[Sequence[Tensor]], Sequence[Tensor]]


SAFE_VERSION = "2.13"
"""Version of torch with which an index out of bounds was seen to be an exception in one thread."""

DECOMPOSITIONS = {
    torch.ops.aten._is_all_true.default: torch.all, torch.ops.aten._is_any_true.default: torch.any,
}  # fmt: skip
"""Of operators that Inductor would call out of its code: torch.distributions checks by them."""


def find_cpp_compiler() -> str | None:
    """Return the path of the C++ compiler that Inductor uses; None if there is none."""
    return shutil.which(os.environ.get("CXX", "g++"))


def compile_graph(graph: GraphModule, tensors: Sequence[Tensor]) -> Compiled:
    """Compile a graph, whose arguments have the layouts of these tensors.

    Raises CompileError.
    """
    has_threads = torch.get_num_threads() > 1
    is_checked = not has_threads and torch.__version__ >= SAFE_VERSION
    bounds = IndexBounds(graph, WRAPPED if is_checked else None)
    head, tail = _split_update(graph)
    compiled = _compile(head, tensors)
    update = None if tail is None else replay(tail)
    num_results = len(_results(graph))

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if not bounds.are_met(tensors):
            raise IndexError("an index is out of bounds")
        results = compiled(tensors)
        if update is None:
            return results
        update([*tensors, *results[num_results:]])
        return results[:num_results]

    return run


def _results(graph: GraphModule) -> Sequence[Node]:
    results: Sequence[Node] = graph.graph.output_node().args[0]  # type: ignore[assignment]
    return results


def _split_update(graph: GraphModule) -> tuple[GraphModule, GraphModule | None]:
    """Return a graph without torch's fused kernels of optimizers, and one of these alone.

    The first returns behind its results what the second needs of it. Inductor would call the
    kernels on copies; its own loops are slower.
    """
    head = Graph()
    tail = Graph()
    in_head: dict[Node, Node] = {}
    in_tail: dict[Node, Node] = {}
    updates = [node for node in graph.graph.nodes if _is_update(node)]
    if not updates:
        return graph, None
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            in_tail[node] = tail.node_copy(node)
        if node.op != "output" and node not in updates:
            in_head[node] = head.node_copy(node, in_head.__getitem__)
    passed = [
        node
        for node in dict.fromkeys(needed for each in updates for needed in each.all_input_nodes)
        if node not in in_tail
    ]
    for node in passed:
        in_tail[node] = tail.placeholder(node.name)
    for node in updates:
        tail.node_copy(node, in_tail.__getitem__)
    tail.output(())
    head.output(tuple(in_head[node] for node in (*_results(graph), *passed)))
    return GraphModule(graph, head), GraphModule(graph, tail)


def _is_update(node: Node) -> bool:
    name = getattr(node.target, "__name__", "")
    return name.startswith("_fused_") or name == "_foreach_add_.Scalar"


def _compile(graph: GraphModule, tensors: Sequence[Tensor]) -> Compiled:
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    remember_probes()
    _compute_scalars_as_tensors(graph)
    _copy_expanded(graph)
    try:
        with torch.no_grad(), config.patch(fallback_random=True):
            functional = make_fx(
                torch.func.functionalize(graph, remove="mutations"),
                decomposition_table={**select_decomp_table(), **DECOMPOSITIONS},
                tracing_mode="fake",
            )(*tensors)
            functional.graph.eliminate_dead_code()
            _round_scalars(functional)
            mode = FakeTensorMode(shape_env=ShapeEnv())  # without, nothing is read from the cache
            arguments = [mode.from_tensor(tensor, static_shapes=True) for tensor in tensors]
            with tracing(TracingContext(mode)), mode:
                compiled = compile_fx_inner(functional, arguments, cpp_wrapper=True)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise CompileError(f"Inductor cannot compile it ({text})") from error

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        results: Sequence[Tensor] = compiled(list(tensors))
        return results

    return run


def _copy_expanded(graph: GraphModule) -> None:
    """Copy expanded tensors to which rows are added: Inductor would add all to one of them."""
    aten = torch.ops.aten
    for node in graph.graph.nodes:
        if node.target not in (aten.index_add.default, aten.index_put.default):
            continue
        tensor = node.args[0]
        assert isinstance(tensor, Node)
        if 0 in tensor.meta["val"].stride():
            with graph.graph.inserting_before(node):
                copy = graph.graph.call_function(
                    aten.clone.default, (tensor,), {"memory_format": torch.contiguous_format}
                )
            node.replace_input_with(tensor, copy)
    graph.recompile()


def _compute_scalars_as_tensors(graph: GraphModule) -> None:
    """Multiply by a tensor where the graph passes its number to an operator as a factor."""
    aten = torch.ops.aten
    for node in list(graph.graph.nodes):
        if node.target not in {
            aten.add_.Tensor, aten.addcdiv_.default, aten.addcmul_.default,
        }:  # fmt: skip
            continue
        factor = node.kwargs.get("alpha", node.kwargs.get("value"))
        if not isinstance(factor, Node) or factor.target != aten._local_scalar_dense.default:
            continue
        with graph.graph.inserting_before(node):
            summand, *operands = node.args
            if len(operands) == 2:
                combine = aten.div if node.target == aten.addcdiv_.default else aten.mul
                operands = [graph.graph.call_function(combine.Tensor, tuple(operands))]
            scaled = graph.graph.call_function(aten.mul.Tensor, (operands[0], factor.args[0]))
            added = graph.graph.call_function(aten.add_.Tensor, (summand, scaled))
        node.replace_all_uses_with(added)
        graph.graph.erase_node(node)
    for node in reversed(list(graph.graph.nodes)):
        if node.target == aten._local_scalar_dense.default and not node.users:
            graph.graph.erase_node(node)
    graph.recompile()


def _round_scalars(graph: GraphModule) -> None:
    """Round tensors without dimensions to the dtype of what they are combined with.

    Operators do so, too; but Inductor vectorizes no loop with two dtypes.
    """
    rounded: dict[tuple[Node, torch.dtype], Node] = {}
    for node in list(graph.graph.nodes):
        result = node.meta.get("val")
        if node.op != "call_function" or not isinstance(result, torch.Tensor) or not result.dim():
            continue
        for argument in node.all_input_nodes:
            value = argument.meta.get("val")
            if (
                isinstance(value, torch.Tensor)
                and not value.dim()
                and value.is_floating_point()
                and value.dtype is not result.dtype
                and result.is_floating_point()
            ):
                key = (argument, result.dtype)
                if key not in rounded:
                    with graph.graph.inserting_before(node):
                        rounded[key] = graph.graph.call_function(
                            torch.ops.prims.convert_element_type.default, (argument, result.dtype)
                        )
                node.replace_input_with(argument, rounded[key])
    graph.recompile()


def replay(graph: GraphModule) -> Compiled:
    """Return a function that calls the operators of a graph one after the other."""

    def run(tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            results: Sequence[Tensor] = graph.forward(*tensors)
        return results

    return run
