"""Tiled matrix products: choice of tile sizes, splitting of sums, and kernels."""

from __future__ import annotations

from functools import lru_cache

import torch

from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.types import NAMES
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.opencl.device import Device


class Tile(Record):
    """Part of a product that a work-group and each of its items compute; powers of two.

    All tiles are in `TILES`, so equality and hash are those of the object.
    """

    __hash__ = object.__hash__
    __eq__ = object.__eq__

    rows: int
    columns: int
    deep: int
    """Length of the sums per load into local memory."""

    item_rows: int
    item_columns: int

    @property
    def items(self) -> int:
        """Number of work items in a group."""
        return self.rows // self.item_rows * (self.columns // self.item_columns)


TILE_SIZES = (
    # rows, columns, deep, item_rows, item_columns; relative throughput
    (128, 256, 8, 8, 16, 40), (128, 128, 16, 8, 8, 36), (64, 128, 16, 4, 8, 34),
    (64, 64, 16, 4, 4, 30), (32, 128, 16, 4, 8, 28), (32, 64, 16, 4, 4, 26),
    (16, 128, 16, 4, 4, 17), (16, 64, 16, 2, 4, 16), (8, 128, 16, 2, 4, 11),
)  # fmt: skip
"""Sizes of each tile, and its throughput relative to the others."""

TILES = {
    Tile(
        rows=sizes[0], columns=sizes[1], deep=sizes[2], item_rows=sizes[3], item_columns=sizes[4]
    ): (sizes[5])
    for sizes in TILE_SIZES
}
"""Relative throughput of each tile on large products."""

MAX_GRID_GROUPS = (1 << 16) - 1
"""Maximum number of work-groups in the second and third dimension on some devices."""

DEPTH_MULTIPLE = 16
"""The length of a group's sums is a multiple of this, whatever its tile."""

GROUPS_PER_UNIT = 4
"""Work-groups per compute unit that keep a device busy."""

MIN_SPLIT_DEPTH = 256
"""Minimum length of a sum that is worth a work-group of its own."""


def groups(tile: Tile, rows: int, columns: int) -> tuple[int, int]:
    """Return the number of tiles across and down the product."""
    return -(-columns // tile.columns), -(-rows // tile.rows)


@lru_cache(maxsize=1 << 14)
def split_k(device: Device, rows: int, columns: int, depth: int, batch: int) -> tuple[int, int]:
    """Return into how many parts to split the sums (split-k), and the length of each.

    It does not depend on the tile, so that results are bitwise equal for all tiles.
    """
    num_tiles = -(-rows // 64) * -(-columns // 64) * batch
    num_parts = max(
        1, min(GROUPS_PER_UNIT * device.num_units // num_tiles, depth // MIN_SPLIT_DEPTH, 256)
    )
    part_length = -(-depth // num_parts)
    part_length = max(DEPTH_MULTIPLE, -(-part_length // DEPTH_MULTIPLE) * DEPTH_MULTIPLE)
    return max(1, -(-depth // part_length)), part_length


@lru_cache(maxsize=1 << 14)
def candidates(device: Device, rows: int, columns: int, batch: int, itemsize: int) -> list[Tile]:
    """Return the tiles that fit the device, the lowest estimated cost first.

    `itemsize` is the size of an element in bytes.
    """
    fitting = [
        tile
        for tile in TILES
        if _local_bytes(tile, itemsize) <= device.local_bytes
        and tile.items <= device.max_group_items
        and groups(tile, rows, columns)[1] <= MAX_GRID_GROUPS
    ]
    return sorted(fitting, key=lambda tile: _estimated_cost(device, tile, rows, columns, batch))


def _local_bytes(tile: Tile, itemsize: int) -> int:
    """Return bytes of local memory of a group: tiles.cl, and the table of conv_weight.cl."""
    return 2 * tile.deep * (tile.rows + tile.columns + 8) * itemsize + tile.columns * 16


def _estimated_cost(device: Device, tile: Tile, rows: int, columns: int, batch: int) -> float:
    """Estimate the relative time of a product, with padding and partly filled waves."""
    across, down = groups(tile, rows, columns)
    num_groups = across * down * batch
    waves = max(1.0, num_groups / device.num_units)
    if num_groups < 8 * device.num_units:  # the last wave takes as long as a full one
        waves = float(-(-num_groups // device.num_units))
    return waves * tile.rows * tile.columns / TILES[tile]


@lru_cache(maxsize=1 << 12)
def tiled_kernel(
    device: Device,
    head: tuple[str, ...],
    tile: Tile,
    dtype: torch.dtype,
    kernel_definitions: tuple[tuple[str, int], ...],
    types: tuple[Any, ...],
) -> Any:
    """Return the kernel of a tile; `head` names the files that define its loads and stores."""
    definitions: Mapping[str, Any] = {
        "T": NAMES[dtype], "BM": tile.rows, "BN": tile.columns, "BK": tile.deep,
        "TM": tile.item_rows, "TN": tile.item_columns, "ITEMS": tile.items,
        "A_STEP": min(4, tile.item_rows), "B_STEP": min(4, tile.item_columns),
        **dict(kernel_definitions),
    }  # fmt: skip
    first, *rest = (*head, "tiles")
    source = program_source(first, definitions) + "".join(program_source(name, {}) for name in rest)
    return compile_kernel(device, source, "product", types)
