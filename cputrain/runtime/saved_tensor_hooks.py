"""Hooks on tensors that autograd saves: those of the script, and those of a memory limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from typing import Any

INTERNAL = "is_internal_to_cputrain"
"""Attribute of a pack hook of this package, whose tensors may be read at any time."""


def has_hooks_of_the_script() -> bool:
    """Return whether what autograd saves now goes through hooks of the script."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return hooks is not None and not hasattr(hooks[0], INTERNAL)


def has_hooks() -> bool:
    """Return whether what autograd saves now goes through any hooks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def mark_internal(pack: Any) -> Any:
    """Mark a pack hook of this package; return it."""
    setattr(pack, INTERNAL, True)
    return pack
