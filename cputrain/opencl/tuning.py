"""Autotuning of tiles: time candidates for each product once, and cache the winner on disk.

All tiles sum in the same order, so the choice does not change results.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from contextlib import suppress
from functools import cache

from cputrain.machine.cache import CacheFile
from cputrain.opencl.tiles import THROUGHPUTS, candidates
from cputrain.variables import OCL_TUNE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from cputrain.opencl.device import Device
    from cputrain.opencl.tiles import Tile

NUM_CANDIDATES = 5
"""Number of candidates that are timed."""

NUM_ROUNDS = 5
"""Timed rounds, in each of which all candidates run once."""

SCHEMA_VERSION = 1
"""Version of the cache file's format."""


class TileTuner:
    """Autotuner of tiles for one device, with a cache of the fastest tiles on disk."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._tiles = list(THROUGHPUTS)
        identity = f"{device.name} {device.version} {self._tiles}"
        name = hashlib.sha256(identity.encode()).hexdigest()[:16]
        self._file = CacheFile("the tiles", SCHEMA_VERSION, "opencl", f"tiles-{name}.json")
        self._indices = self._read()
        self._by_key: dict[tuple[object, ...], Tile] = {}

    def tile(
        self, product_name: str, rows: int, columns: int, depth: int, batch: int,
        dtype: torch.dtype, launch: Callable[[Tile], None],
    ) -> Tile:  # fmt: skip
        """Return the fastest tile for a product.

        Args:
            product_name: Name of the kernel and its definitions.
            rows: Rows of the product.
            columns: Columns of the product.
            depth: Length of the sums.
            batch: Number of products.
            dtype: Dtype of the factors.
            launch: Launches the product with a tile, to time it.
        """
        key = (product_name, rows, columns, depth, batch)
        result = self._by_key.get(key)
        if result is None:
            result = self._by_key[key] = self._look_up(*key, dtype, launch)
        return result

    def _look_up(
        self, product_name: str, rows: int, columns: int, depth: int, batch: int,
        dtype: torch.dtype, launch: Callable[[Tile], None],
    ) -> Tile:  # fmt: skip
        fitting = candidates(self._device, rows, columns, batch, dtype)
        if self._device.is_cpu or os.environ.get(OCL_TUNE) == "0":
            return fitting[0]
        name = f"{product_name} {rows} {columns} {depth} {batch}"
        index = self._indices.get(name, -1)
        if index not in {self._tiles.index(tile) for tile in fitting}:
            index = self._tiles.index(self._fastest(fitting[:NUM_CANDIDATES], launch))
            with self._lock:
                self._indices[name] = index
                self._write()
        return self._tiles[index]

    def _fastest(self, fitting: list[Tile], launch: Callable[[Tile], None]) -> Tile:
        """Time tiles in turns, as an idle device is slow at first; return the fastest."""
        elapsed_s = dict.fromkeys(fitting, float("inf"))
        for round_index in range(NUM_ROUNDS + 1):
            for tile in fitting:
                start_s = time.perf_counter()
                launch(tile)
                self._device.finish()
                if round_index:  # (the first round compiles)
                    elapsed_s[tile] = min(elapsed_s[tile], time.perf_counter() - start_s)
        return min(elapsed_s, key=lambda tile: elapsed_s[tile])

    def _read(self) -> dict[str, int]:
        indices = self._file.read()[0].get("tiles")  # missing or corrupt: measure again
        if not isinstance(indices, dict):
            return {}
        return {name: index for name, index in indices.items() if isinstance(index, int)}

    def _write(self) -> None:
        with suppress(OSError):  # disk full or read-only: measure again next time
            self._file.write({"tiles": self._indices})


@cache
def tuner_of(device: Device) -> TileTuner:
    """Return the tile tuner of a device."""
    return TileTuner(device)
