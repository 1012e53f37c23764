"""Rows in shared memory stay where they are, as with torch: a write to a batch reaches the data."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from cputrain.data import DataLoader
from tests.data.samples import Rows, untouched

KINDS = pytest.mark.parametrize("kind", [TorchLoader, DataLoader], ids=["torch", "ours"])


class Table:
    """Rows of one shared tensor."""

    def __init__(self, rows: int, width: int) -> None:
        self.data = torch.arange(float(rows)).repeat_interleave(width).view(rows, width)
        self.data.share_memory_()

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> Any:
        return self.data[row]


@KINDS
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("width", [1, 5000])
def test_a_write_to_a_batch_reaches_the_dataset(kind: Any, method: str, width: int) -> None:
    table = Table(12, width)
    loader = kind(table, batch_size=None, num_workers=2, multiprocessing_context=method)
    for row, batch in enumerate(loader):
        assert batch.is_shared()
        assert batch.tolist() == [float(row)] * width
        assert batch.storage_offset() == row * width
        assert batch.untyped_storage().nbytes() == table.data.untyped_storage().nbytes()
        batch.fill_(-row)
    assert table.data[:, 0].tolist() == [-row for row in range(12)]


@KINDS
def test_rows_that_are_copied_or_stacked_are_the_scripts_own(kind: Any) -> None:
    table = Table(12, 5000)
    for batch in kind(table, batch_size=4, num_workers=1):
        batch.fill_(-1)
    assert table.data[:, 0].tolist() == list(range(12))


@KINDS
def test_views_of_one_shared_tensor_alias_one_another(kind: Any) -> None:
    table = Table(12, 3000)
    for number, batch in enumerate(kind(table, batch_size=3, num_workers=1, collate_fn=untouched)):
        batch[0].fill_(-1)
        seen_by_the_last = batch[2].as_strided((12,), (3000,), 0)
        assert seen_by_the_last[3 * number] == -1
    assert table.data[:, 0].tolist() == [-1, 1, 2, -1, 4, 5, -1, 7, 8, -1, 10, 11]


def _shared(row: int) -> Any:
    return torch.full((2500,), row).share_memory_()


def _small(row: int) -> Any:
    return torch.tensor([row]).share_memory_()


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return map(_shared, range(300))


@pytest.mark.parametrize("make", [_shared, _small])
@pytest.mark.parametrize("workers", [1, 2])
def test_rows_shared_by_a_worker_live_until_they_are_opened(make: Any, workers: int) -> None:
    loader = DataLoader(
        Rows(make, 400), batch_size=None, num_workers=workers, persistent_workers=True
    )
    for _ in range(2):
        assert [int(batch[0]) for batch in loader] == list(range(400))


def test_rows_shared_by_a_worker_outlive_it() -> None:
    kept = list(DataLoader(Stream(), batch_size=None, num_workers=1))
    assert [int(batch[-1]) for batch in kept] == list(range(300))


class Watched(Rows):
    """Tells how many descriptors its worker has open."""

    def __init__(self) -> None:
        super().__init__(self._row, 600)

    def _row(self, row: int) -> Any:
        return _small(row), len(os.listdir("/proc/self/fd"))


def test_no_descriptors_pile_up_in_workers_nor_in_the_script() -> None:
    def described() -> list[int]:
        loader = DataLoader(Watched(), batch_size=None, num_workers=1, prefetch_factor=3)
        return [int(descriptors) for _, descriptors in loader]

    described()  # the latest few stay open in this process
    before = len(os.listdir("/proc/self/fd"))
    open_in_worker = described()
    assert max(open_in_worker[20:]) <= min(open_in_worker[:20]) + 16
    assert len(os.listdir("/proc/self/fd")) <= before
