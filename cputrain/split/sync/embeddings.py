"""Embeddings whose gradient a replica keeps as the rows that its shard reads.

A gradient as large as the table, for every shard, takes longer than all else in models with large
tables. The rows of all shards become one such gradient in the end.
"""

from __future__ import annotations

from functools import wraps

import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)

from cputrain.split.execution.context import current_replica

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Function = Callable[..., Any]
    Tensor = torch.Tensor


def replacements() -> list[tuple[Any, str, Callable[[Function], Function]]]:
    """Return (owner, attribute name, function that wraps torch's) for each patched function."""
    return [(F, "embedding", _embedding), (F, "embedding_bag", _embedding_bag)]


def _embedding(original: Function) -> Function:
    @wraps(original)
    def embedding(
        input: Tensor,  # noqa: A002  (torch's name)
        weight: Tensor,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float = 2.0,
        scale_grad_by_freq: bool = False,
        sparse: bool = False,
    ) -> Tensor:
        if not (sparse or scale_grad_by_freq or max_norm is not None):
            sparse = _takes_rows(input, weight)
        return original(  # type: ignore[no-any-return]
            input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse
        )

    return embedding


def _embedding_bag(original: Function) -> Function:
    @wraps(original)
    def embedding_bag(
        input: Tensor,  # noqa: A002  (torch's name)
        weight: Tensor,
        offsets: Tensor | None = None,
        max_norm: float | None = None,
        norm_type: float = 2,
        scale_grad_by_freq: bool = False,
        mode: str = "mean",
        sparse: bool = False,
        *rest: Any,
        **named: Any,
    ) -> Tensor:
        if not (sparse or scale_grad_by_freq or max_norm is not None or mode == "max"):
            sparse = _takes_rows(input, weight)
        return original(  # type: ignore[no-any-return]
            input, weight, offsets, max_norm, norm_type, scale_grad_by_freq, mode, sparse, *rest,
            **named,
        )  # fmt: skip

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
