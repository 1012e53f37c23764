"""Embeddings whose gradient a replica keeps as the rows that its shard reads.

A gradient as large as the table, for every shard, takes longer than all else in models with large
tables. The rows of all shards become one such gradient in the end.

The operators are patched, and not torch.nn.functional: subclasses of tensors know its functions.
"""

from __future__ import annotations

from functools import wraps

import torch

from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Function = Callable[..., Any]

NUM_ARGUMENTS = {"embedding": 5, "embedding_bag": 9}
"""Number of arguments with which torch.nn.functional calls the operators."""

MAX_MODE = 2
"""The mode of embedding_bag that takes the largest value; its gradient has no rows."""


def replacements() -> list[tuple[Any, str, Callable[[Function], Function]]]:
    """Return (owner, attribute name, function that wraps torch's) for each patched function."""
    return [(torch, "embedding", _embedding), (torch, "embedding_bag", _embedding_bag)]


def _embedding(original: Function) -> Function:
    @wraps(original)
    def embedding(*args: Any, **kwargs: Any) -> Any:
        if len(args) == NUM_ARGUMENTS["embedding"] and not kwargs:
            table, indices, padding, by_frequency, is_sparse = args
            if not (is_sparse or by_frequency) and _takes_rows(indices, table):
                return original(table, indices, padding, by_frequency, True)
        return original(*args, **kwargs)

    return embedding


def _embedding_bag(original: Function) -> Function:
    @wraps(original)
    def embedding_bag(*args: Any, **kwargs: Any) -> Any:
        if len(args) == NUM_ARGUMENTS["embedding_bag"] and not kwargs:
            table, indices, offsets, by_frequency, mode, is_sparse, *rest = args
            if not (is_sparse or by_frequency or mode == MAX_MODE) and _takes_rows(indices, table):
                return original(table, indices, offsets, by_frequency, mode, True, *rest)
        return original(*args, **kwargs)

    return embedding_bag


def _takes_rows(indices: Any, table: Any) -> bool:
    """Return whether the gradient of a table shall be rows, and remember that of its replica."""
    context = current_replica()
    if (
        context is None
        or context.trace is not None
        or not torch.is_grad_enabled()
        or id(table) not in context.parameters
        or not isinstance(indices, torch.Tensor)
        or not table.requires_grad
        or table.size(0) <= indices.numel()
    ):
        return False
    context.row_gradients.add(context.parameters[id(table)])
    return True
