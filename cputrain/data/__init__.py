"""Loading data without waiting for it."""

from __future__ import annotations

from cputrain.data.loader import DataLoader

__all__ = ["DataLoader"]
