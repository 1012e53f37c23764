"""Which arguments an operator mutates, by its schema."""

from __future__ import annotations

from functools import cache

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNMARKED = {torch.ops.aten.native_batch_norm.default: (3, 4)}
"""Indices of mutated arguments that torch's schema does not mark: running statistics."""


@cache
def is_mutating(func: Any) -> bool:
    """Return whether an operator mutates any of its arguments."""
    return func in UNMARKED or any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in func._schema.arguments
    )
