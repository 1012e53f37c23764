"""Disable torch.autocast for the device, which has no reduced-precision kernels; warn once."""

from __future__ import annotations

import warnings
from functools import wraps

import torch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_has_warned = False


def disable_autocast(original_init: Any, name: str) -> Any:
    """Wrap autocast's `__init__`: for this device, disable it and warn once per process.

    Torch does so for dtypes that `get_amp_supported_dtype` lacks, but warns again in every step of
    a loop that changes Python's warning filters.
    """

    @wraps(original_init)
    def init(
        self: Any, device_type: str, dtype: Any = None, enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:  # fmt: skip
        if device_type == name and enabled:
            target_dtype = torch.get_autocast_dtype(name) if dtype is None else dtype
            if target_dtype is not torch.float32:
                _warn(name, target_dtype)
                enabled = False
        original_init(self, device_type, dtype, enabled, cache_enabled)

    return init


def _warn(name: str, dtype: torch.dtype) -> None:
    global _has_warned
    if not _has_warned:
        warnings.warn(
            f"In {name} autocast, but the target dtype is not supported. Disabling autocast.\n"
            f"No kernel of {name} supports {dtype}: results are in float32, as without autocast.",
            stacklevel=3,
        )
        _has_warned = True
