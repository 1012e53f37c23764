"""The order in which tiles of a matrix product are tried."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cputrain.opencl.tiles import TENSOR_CORE_TILES, TILES, Tile, candidates, groups, split_k


def device(num_units: int, *, has_tensor_cores: bool = False, local_bytes: int = 1 << 20) -> Any:
    """A device with room for every tile."""
    return cast(
        "Any",
        _Hashable(
            num_units=num_units,
            local_bytes=local_bytes,
            max_group_items=1 << 12,
            has_tensor_cores=has_tensor_cores,
        ),
    )


class _Hashable(SimpleNamespace):
    """Attributes of a device, which is the key of a cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.__dict__.values()))


def work(tile: Tile) -> float:
    return tile.rows * tile.columns / TILES[tile]


def test_tiles_that_all_run_at_once_are_ordered_by_the_work_of_one() -> None:
    """A device with units to spare computes every group of tiles in one wave."""
    ordered = candidates(device(10_000), 96, 96, 1, torch.float32)
    assert set(ordered) == set(TILES)
    assert [work(tile) for tile in ordered] == sorted(map(work, TILES))


@pytest.mark.parametrize(("rows", "columns", "batch"), [(96, 96, 1), (500, 40, 3), (33, 257, 2)])
@pytest.mark.parametrize("num_units", [1, 3, 24])
def test_a_last_wave_takes_as_long_as_a_full_one(
    num_units: int, rows: int, columns: int, batch: int
) -> None:
    def cost(tile: Tile) -> float:
        across, down = groups(tile, rows, columns)
        total = across * down * batch
        if total < 8 * num_units:
            return (total + num_units - 1) // num_units * work(tile)
        return max(1.0, total / num_units) * work(tile)

    ordered = candidates(device(num_units), rows, columns, batch, torch.float32)
    assert [cost(tile) for tile in ordered] == sorted(cost(tile) for tile in TILES)


def test_tensor_cores_multiply_what_has_16_bits() -> None:
    gpu = device(132, has_tensor_cores=True)
    for dtype in (torch.float16, torch.bfloat16):
        assert set(candidates(gpu, 512, 512, 1, dtype)) == set(TENSOR_CORE_TILES)
        assert set(candidates(device(132), 512, 512, 1, dtype)) == set(TILES)
    assert set(candidates(gpu, 512, 512, 1, torch.float32)) == set(TILES)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_all_tiles_fit_the_local_memory_of_nvidia_gpus(dtype: torch.dtype) -> None:
    gpu = device(132, has_tensor_cores=True, local_bytes=48 << 10)
    tiles = TENSOR_CORE_TILES if dtype is torch.bfloat16 else TILES
    assert set(candidates(gpu, 512, 512, 1, dtype)) == set(tiles)


@pytest.mark.parametrize("tile", TENSOR_CORE_TILES)
def test_warps_divide_a_tile_of_tensor_cores(tile: Tile) -> None:
    """A warp computes 16 x 8 elements per instruction, and loads whole lines of both factors."""
    assert tile.item_rows % 2 == tile.item_columns % 2 == 0
    assert tile.rows % (8 * tile.item_rows) == tile.columns % (4 * tile.item_columns) == 0
    assert tile.items % 32 == tile.items % tile.deep == tile.items % tile.columns == 0
    assert tile.deep % 16 == 0


def test_sums_are_split_the_same_for_every_tile_and_cover_the_depth() -> None:
    for depth in (1, 255, 256, 1000, 4096, 100_000):
        for num_units in (1, 8, 128):
            parts, length = split_k(device(num_units), 64, 64, depth, 1)
            assert (parts - 1) * length < depth <= parts * length
            assert length % 16 == 0
