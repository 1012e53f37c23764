"""Trace the batch through the backward of each `torch.autograd.Function` written in Python.

The backward of a torch operator keeps samples apart if its forward does. That of a custom function
is arbitrary code, which may scale gradients by their mean or clip them by their norm; so it is run
under the recorder.
"""

from __future__ import annotations

import torch

from cputrain.split.proof.sharding import MixesSamples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from cputrain.split.proof.trace import OperatorRecorder


def trace(recorder: OperatorRecorder, outputs: Sequence[Any]) -> None:
    """Run each custom function's backward under the recorder, with gradients of ones."""
    for node in _functions(outputs):
        function = type(node)._forward_cls
        name = function.__qualname__
        if function.__module__.startswith("torch."):
            with recorder.naming_operator(f"the backward of {name}"):
                raise MixesSamples(
                    "runs a part of the model again: have a checkpoint say use_reentrant=False"
                )
        gradients = []
        for metadata in node._input_metadata:
            gradient = torch.ones(metadata.shape, dtype=metadata.dtype, device=metadata.device)
            recorder.set_gradient(name, gradient)
            gradients.append(gradient)
        with recorder, torch.no_grad():
            results = node.apply(*gradients)
        for result in results if isinstance(results, tuple) else (results,):
            if isinstance(result, torch.Tensor):
                recorder.check_gradient(name, result)


def _functions(outputs: Sequence[Any]) -> Iterator[Any]:
    """Iterate over the nodes of custom functions in the graph, in a deterministic order."""
    for node in graph_nodes(outputs):
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__module__.startswith("cputrain."):
            yield node


def graph_nodes(outputs: Sequence[Any]) -> Iterator[Any]:
    """Iterate over all nodes of the outputs' autograd graph, each once."""
    stack = [output.grad_fn for output in outputs if isinstance(output, torch.Tensor)]
    seen: set[Any] = set()
    while stack:
        node: Any = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack += [next_node for next_node, _ in node.next_functions]
        yield node
