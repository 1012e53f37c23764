"""Products in tiles: which tile for which product, and the kernel of one."""

from __future__ import annotations

from functools import lru_cache

import torch

from cputrain.opencl.program import kernel_of, text_of
from cputrain.opencl.types import NAMES
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.opencl.device import Device


class Tile(Record):
    """What a group of items makes, and each of them; both are powers of two."""

    rows: int
    columns: int
    deep: int
    """What is added up before more is read."""

    item_rows: int
    item_columns: int

    @property
    def items(self) -> int:
        """In a group."""
        return self.rows // self.item_rows * (self.columns // self.item_columns)


TILES = tuple(
    Tile(rows=rows, columns=columns, deep=deep, item_rows=item_rows, item_columns=item_columns)
    for rows, columns, deep, item_rows, item_columns in (
        (128, 128, 16, 8, 8), (64, 128, 16, 4, 8), (64, 64, 16, 4, 4), (32, 128, 16, 4, 8),
        (32, 64, 16, 4, 4), (16, 128, 16, 4, 4), (16, 64, 16, 2, 4), (8, 128, 16, 2, 4),
    )
)  # fmt: skip
"""The largest first."""


def groups(tile: Tile, rows: int, columns: int) -> tuple[int, int]:
    """How many of them make the product."""
    return -(-columns // tile.columns), -(-rows // tile.rows)


@lru_cache(maxsize=1 << 14)
def best(device: Device, rows: int, columns: int, deep: int, batch: int) -> Tile:
    """The one that is through first: by what it computes in vain, and how many there are."""
    return min(TILES, key=lambda tile: _cost(device, tile, rows, columns, deep, batch))


def _cost(device: Device, tile: Tile, rows: int, columns: int, deep: int, batch: int) -> float:
    across, down = groups(tile, rows, columns)
    many = across * down * batch
    # groups that a unit has at once hide one another's waits
    waves = -(-many // device.units)
    # what an item reads from local memory for what it computes
    per = 1 / tile.item_rows + 1 / tile.item_columns
    work = tile.rows * tile.columns * (1 + 2 * per)
    alone = 1 + 1 / waves
    return waves * work * alone * (deep + 4 * tile.deep)


@lru_cache(maxsize=1 << 12)
def tiled(
    device: Device,
    head: tuple[str, ...],
    tile: Tile,
    kind: torch.dtype,
    defined: tuple[tuple[str, int], ...],
    types: tuple[Any, ...],
) -> Any:
    """The kernel: `head` are the files that say what is read and written."""
    number: Mapping[str, Any] = {
        "T": NAMES[kind], "BM": tile.rows, "BN": tile.columns, "BK": tile.deep,
        "TM": tile.item_rows, "TN": tile.item_columns, "ITEMS": tile.items,
        "A_STEP": min(4, tile.item_rows), "B_STEP": min(4, tile.item_columns), **dict(defined),
    }  # fmt: skip
    first, *others = (*head, "tiles")
    source = text_of(first, number) + "".join(text_of(other, {}) for other in others)
    return kernel_of(device, source, "product", types)
