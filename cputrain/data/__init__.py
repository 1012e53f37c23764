"""The DataLoader: torch's batches in torch's order, with less time spent waiting for them."""

from __future__ import annotations

from cputrain.data.loader import DataLoader
from cputrain.data.messages import listen
from cputrain.data.strategy import iterator_of, statistics_of

__all__ = ["DataLoader", "iterator_of", "listen", "statistics_of"]
