"""Autocast of the device "ocl" as it is now, and as it was when a call was made."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from contextlib import AbstractContextManager


def autocast_dtype() -> torch.dtype | None:
    """Return the dtype that autocast casts to; None if it is off."""
    return torch.get_autocast_dtype("ocl") if torch.is_autocast_enabled("ocl") else None


def in_autocast(dtype: torch.dtype | None) -> AbstractContextManager[None]:
    """Return a context in which autocast casts to a dtype, or is off; casts are not kept."""
    return torch.autocast("ocl", dtype, enabled=dtype is not None, cache_enabled=False)
