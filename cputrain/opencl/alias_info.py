"""Which arguments operators write to."""

from __future__ import annotations

from functools import cache

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

UNMARKED = {torch.ops.aten.native_batch_norm.default: (3, 4)}
"""By operator, the places of those that torch's schema does not mark: running statistics."""


@cache
def writes(func: Any) -> bool:
    """Whether there are any."""
    return func in UNMARKED or any(
        one.alias_info is not None and one.alias_info.is_write for one in func._schema.arguments
    )
