"""Follows the batch through backwards that are written in Python: `torch.autograd.Function`.

The backward of torch's own operators follows from their forward. That of a function is a program of
its own, which may scale gradients by their mean or clip them by their norm; so it is run under the
recorder.
"""

from __future__ import annotations

import torch

from cputrain.split.proof.sharding import MixesSamples

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from cputrain.split.proof.trace import Recorder


def trace(recorder: Recorder, outputs: Sequence[Any]) -> None:
    """Run each function's backward, for gradients of samples, on its own."""
    for node in _functions(outputs):
        function = type(node)._forward_cls
        name = function.__qualname__
        if function.__module__.startswith("torch."):
            with recorder.told(f"the backward of {name}"):
                raise MixesSamples(
                    "runs a part of the model again: have a checkpoint say use_reentrant=False"
                )
        gradients = []
        for metadata in node._input_metadata:
            gradient = torch.ones(metadata.shape, dtype=metadata.dtype, device=metadata.device)
            recorder.gradient(name, gradient)
            gradients.append(gradient)
        with recorder, torch.no_grad():
            found = node.apply(*gradients)
        for one in found if isinstance(found, tuple) else (found,):
            if isinstance(one, torch.Tensor):
                recorder.check_gradient(name, one)


def _functions(outputs: Sequence[Any]) -> Iterator[Any]:
    """Go through the functions of Python in a graph, in an order that is always the same."""
    for node in graph_nodes(outputs):
        function = getattr(type(node), "_forward_cls", None)
        if function is not None and not function.__module__.startswith("cputrain."):
            yield node


def graph_nodes(outputs: Sequence[Any]) -> Iterator[Any]:
    """Go through all nodes of the autograd graph behind some outputs, each once."""
    waiting = [one.grad_fn for one in outputs if isinstance(one, torch.Tensor)]
    seen: set[Any] = set()
    while waiting:
        node: Any = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        waiting += [after for after, _ in node.next_functions]
        yield node
