"""Whether two batches are the same, down to their types and strides."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def assert_alike(ours: Any, theirs: Any) -> None:
    """Fails unless both are the same values in the same containers, laid out the same way."""
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype is theirs.dtype
        assert ours.shape == theirs.shape
        assert ours.stride() == theirs.stride()
        assert _bytes(ours) == _bytes(theirs)
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert not ours.size or ours.strides == theirs.strides
        assert ours.tolist() == theirs.tolist()
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_alike(ours[key], theirs[key])
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_alike(one, other)
    elif hasattr(theirs, "__dict__"):
        assert_alike(vars(ours), vars(theirs))
    else:
        assert ours == theirs


def _bytes(tensor: torch.Tensor) -> bytes:
    flat = tensor.resolve_conj().clone(memory_format=torch.contiguous_format).view(-1)
    return bytes(flat.view(torch.uint8).numpy())
