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
    """What a group of items makes, and each of them; both are powers of two. All are in TILES, and
    known by who they are."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__

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


FORMS = (
    # rows, columns, deep, an item's rows and columns; how fast
    (128, 256, 8, 8, 16, 40), (128, 128, 16, 8, 8, 36), (64, 128, 16, 4, 8, 34),
    (64, 64, 16, 4, 4, 30), (32, 128, 16, 4, 8, 28), (32, 64, 16, 4, 4, 26),
    (16, 128, 16, 4, 4, 17), (16, 64, 16, 2, 4, 16), (8, 128, 16, 2, 4, 11),
)  # fmt: skip

TILES = {
    Tile(rows=form[0], columns=form[1], deep=form[2], item_rows=form[3], item_columns=form[4]): (
        form[5]
    )
    for form in FORMS
}
"""With how fast they are where there is enough to do, against one another."""

MOST = (1 << 16) - 1
"""Groups in the second and in the third direction, on some devices."""

DEEP = 16
"""What is added up by one group of items is a multiple of this, whatever its tile."""

WAVES = 4
"""Groups for each unit of a device that are enough."""

LEAST = 256
"""Elements to add up that are worth a group of their own."""


def groups(tile: Tile, rows: int, columns: int) -> tuple[int, int]:
    """How many of them make the product."""
    return -(-columns // tile.columns), -(-rows // tile.rows)


@lru_cache(maxsize=1 << 14)
def parts_of(device: Device, rows: int, columns: int, deep: int, batch: int) -> tuple[int, int]:
    """Among how many groups what is added up is divided, and how much each has.

    It does not depend on the tile: all give the same, to the last bit.
    """
    there = -(-rows // 64) * -(-columns // 64) * batch
    parts = max(1, min(WAVES * device.units // there, deep // LEAST, 256))
    each = -(-deep // parts)
    each = max(DEEP, -(-each // DEEP) * DEEP)
    return max(1, -(-deep // each)), each


@lru_cache(maxsize=1 << 14)
def candidates(device: Device, rows: int, columns: int, batch: int, each: int) -> list[Tile]:
    """Those that may be fastest, the most likely first; an element has so many bytes."""
    fitting = [
        tile
        for tile in TILES
        if _local(tile, each) <= device.local
        and tile.items <= device.largest_group
        and groups(tile, rows, columns)[1] <= MOST
    ]
    return sorted(fitting, key=lambda tile: _cost(device, tile, rows, columns, batch))


def _local(tile: Tile, each: int) -> int:
    """Bytes that a group shares, as in tiles.cl; and a table of windows, as in conv_weight.cl."""
    return 2 * tile.deep * (tile.rows + tile.columns + 8) * each + tile.columns * 16


def _cost(device: Device, tile: Tile, rows: int, columns: int, batch: int) -> float:
    """By what it computes in vain, and how many groups there are for all units."""
    across, down = groups(tile, rows, columns)
    many = across * down * batch
    waves = max(1.0, many / device.units)
    if many < 8 * device.units:  # the last wave is as long as the others
        waves = float(-(-many // device.units))
    return waves * tile.rows * tile.columns / TILES[tile]


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
