"""Give each batch of a Dataset random numbers of its own, whichever process prepares it.

Torch seeds a worker by its number, and has a DataLoader without workers draw from the generators of
the script. Here the numbers of a batch follow from the epoch's seed, which is the same in both
cases, and from the indices of its samples.
"""

from __future__ import annotations

import random
import sys
from contextlib import contextmanager
from hashlib import sha256
from typing import TYPE_CHECKING

import torch
from torch.utils.data import get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from cputrain.runtime.patching import Patch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_Iterator: Any = _SingleProcessDataLoaderIter
_Fetcher: Any = _MapDatasetFetcher

EPOCH_SEED = "_cputrain_epoch_seed"
"""Attribute of the fetchers of DataLoaders without workers."""


class ReproducibleLoading:
    """Patches of torch's DataLoader."""

    def __init__(self) -> None:
        start, fetch = _Iterator.__init__, _Fetcher.fetch

        def start_epoch(self: Any, loader: Any) -> None:
            start(self, loader)
            setattr(self._dataset_fetcher, EPOCH_SEED, self._base_seed)

        def fetch_batch(self: Any, index: Any) -> Any:
            info = get_worker_info()
            seed = getattr(self, EPOCH_SEED, None) if info is None else info.seed - info.id
            if seed is None:
                return fetch(self, index)
            with _random_numbers_of(seed, index):
                return fetch(self, index)

        self._patches = [
            Patch(_Iterator, "__init__", start_epoch),
            Patch(_Fetcher, "fetch", fetch_batch),
        ]

    def undo(self) -> None:
        """Restore torch's DataLoader."""
        for patch in self._patches:
            patch.undo()


@contextmanager
def _random_numbers_of(epoch_seed: int, index: Any) -> Iterator[None]:
    """Seed the generators of torch, Python and NumPy for a batch; restore them afterwards."""
    from cputrain.split.proof.search import RandomStates

    digest = sha256(repr((epoch_seed, index)).encode()).digest()
    seed = int.from_bytes(digest[:8], "little") >> 1
    numpy = sys.modules.get("numpy")
    states = RandomStates()
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
    try:
        yield
    finally:
        states.restore()
