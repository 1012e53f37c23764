"""Tiled matrix products: choice of tile sizes, splitting of sums, and kernels."""

from __future__ import annotations

from functools import lru_cache

import torch

from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.types import COMPUTES, access_definitions, computes_in, element_definitions
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
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

TENSOR_CORE_SIZES = (
    (128, 128, 32, 8, 8, 40), (128, 64, 32, 8, 8, 32), (64, 128, 32, 8, 8, 32),
    (64, 64, 32, 4, 8, 24), (32, 128, 32, 4, 8, 20),
)  # fmt: skip
"""The same for products by tensor cores: a warp of 32 items computes 8 by 4 of their parts."""


def _tiles(table: Sequence[tuple[int, ...]]) -> dict[Tile, int]:
    """Return the relative throughput of each tile on large products."""
    return {
        Tile(rows=rows, columns=columns, deep=deep, item_rows=down, item_columns=across): throughput
        for rows, columns, deep, down, across, throughput in table
    }


TILES, TENSOR_CORE_TILES = _tiles(TILE_SIZES), _tiles(TENSOR_CORE_SIZES)
THROUGHPUTS = TILES | TENSOR_CORE_TILES
"""Relative throughput of each tile on large products."""


def uses_tensor_cores(device: Device, dtype: torch.dtype) -> bool:
    """Return whether products of a dtype are computed by tensor cores."""
    return device.has_tensor_cores and dtype in COMPUTES


MAX_GRID_GROUPS = (1 << 16) - 1
"""Maximum number of work-groups in the second and third dimension on some devices."""

DEPTH_MULTIPLE = 16
"""The length of a group's sums is a multiple of this, whatever its tile."""

GROUPS_PER_UNIT = 4
"""Work-groups per compute unit that keep a device busy."""

MIN_SPLIT_DEPTH = 256
"""Minimum length of a sum that is worth a work-group of its own."""


def result_definitions(dtype: torch.dtype, num_parts: int) -> tuple[tuple[str, str], ...]:
    """Return the definitions of a product's result in memory: parts of a sum are not rounded."""
    result = dtype if num_parts == 1 else computes_in(dtype)
    return tuple(access_definitions(result, "RESULT").items())


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
def candidates(
    device: Device, rows: int, columns: int, batch: int, dtype: torch.dtype
) -> list[Tile]:
    """Return the tiles that fit the device, the lowest estimated cost first."""
    on_tensor_cores = uses_tensor_cores(device, dtype)
    fitting = [
        tile
        for tile in (TENSOR_CORE_TILES if on_tensor_cores else TILES)
        if _local_bytes(tile, dtype, on_tensor_cores=on_tensor_cores) <= device.local_bytes
        and tile.items <= device.max_group_items
        and groups(tile, rows, columns)[1] <= MAX_GRID_GROUPS
    ]
    return sorted(fitting, key=lambda tile: _estimated_cost(device, tile, rows, columns, batch))


def _local_bytes(tile: Tile, dtype: torch.dtype, *, on_tensor_cores: bool) -> int:
    """Return bytes of a group's local memory: two blocks of the factors, conv_weight.cl's table."""
    if on_tensor_cores:
        num_elements, itemsize = (tile.deep + 8) * (tile.rows + tile.columns), dtype.itemsize
    else:
        num_elements = tile.deep * (tile.rows + tile.columns + 8)
        itemsize = computes_in(dtype).itemsize
    return 2 * num_elements * itemsize + tile.columns * 16


def _estimated_cost(device: Device, tile: Tile, rows: int, columns: int, batch: int) -> float:
    """Estimate the relative time of a product, with padding and partly filled waves."""
    across, down = groups(tile, rows, columns)
    num_groups = across * down * batch
    waves = max(1.0, num_groups / device.num_units)
    if num_groups < 8 * device.num_units:  # the last wave takes as long as a full one
        waves = float(-(-num_groups // device.num_units))
    return waves * tile.rows * tile.columns / THROUGHPUTS[tile]


@lru_cache(maxsize=1 << 12)
def tiled_kernel(
    device: Device,
    head: tuple[str, ...],
    tile: Tile,
    dtype: torch.dtype,
    kernel_definitions: tuple[tuple[str, Any], ...],
    types: tuple[Any, ...],
) -> Any:
    """Return the kernel of a tile; `head` names the files that define its loads and stores."""
    definitions: dict[str, Any] = {
        **element_definitions(dtype), "BM": tile.rows, "BN": tile.columns, "BK": tile.deep,
        "TM": tile.item_rows, "TN": tile.item_columns, "ITEMS": tile.items,
        "A_STEP": min(4, tile.item_rows), "B_STEP": min(4, tile.item_columns),
        "FACTOR": "T", "LOAD_FACTOR(p, i)": "LOAD(p, i)", **dict(kernel_definitions),
    }  # fmt: skip
    kernel_file = "tiles"
    if uses_tensor_cores(device, dtype):
        kernel_file = "tensor_cores"
        definitions |= {
            "FACTOR": "ushort", "LOAD_FACTOR(p, i)": "((__global const ushort*)(p))[i]",
            "KIND": '"f16"' if dtype is torch.float16 else '"bf16"',
        }  # fmt: skip
    source = program_source(head[0], definitions) + "".join(
        program_source(name, {}) for name in (*head[1:], "blocks", kernel_file)
    )
    return compile_kernel(device, source, "product", types)
