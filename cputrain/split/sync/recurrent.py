"""Recurrent layers with dropout between them, whose random numbers torch draws within one operator.

In replicas each layer is called alone, and the dropout behind it is a function like any other.
"""

from __future__ import annotations

from functools import wraps

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)

from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    Function = Callable[..., Any]
    Tensor = torch.Tensor

OPERATORS = ("lstm", "gru", "rnn_tanh", "rnn_relu")

NUM_ARGUMENTS = 9
"""Number of arguments with which torch.nn calls the operators."""


def replacements() -> list[tuple[Any, str, Callable[[Function], Function]]]:
    """Return (owner, attribute name, function that wraps torch's) for each patched function."""
    return [(torch._VF, name, _layer_by_layer) for name in OPERATORS]


def _layer_by_layer(original: Function) -> Function:
    @wraps(original)
    def recurrent(*args: Any, **kwargs: Any) -> Any:
        context = current_replica()
        if (
            context is None
            or kwargs
            or len(args) != NUM_ARGUMENTS
            or not isinstance(args[3], bool)  # a packed sequence, which is no batch
        ):
            return original(*args, **kwargs)
        data, states, weights, has_biases, num_layers, p, training, bidirectional, by_batch = args
        if num_layers == 1 or not training or not 0 < p < 1:
            return original(*args)
        of_layer = len(weights) // num_layers
        num_states = 2 if bidirectional else 1
        is_pair = not isinstance(states, torch.Tensor)
        if by_batch:
            data = data.transpose(0, 1)
        ends: list[Sequence[Tensor]] = []
        for layer in range(num_layers):
            if layer:
                data = F.dropout(data, p, training=True)
            begin = [
                state.narrow(0, layer * num_states, num_states)
                for state in (states if is_pair else [states])
            ]
            data, *end = original(
                data, tuple(begin) if is_pair else begin[0],
                weights[layer * of_layer : (layer + 1) * of_layer], has_biases,
                1, 0.0, training, bidirectional, False,
            )  # fmt: skip
            ends.append(end)
        if by_batch:
            data = data.transpose(0, 1)
        return data, *(torch.cat(tuple(end)) for end in zip(*ends, strict=True))

    return recurrent
