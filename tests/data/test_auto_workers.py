"""num_workers="auto": a number, and why."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset, TensorDataset

from cputrain.data import DataLoader, auto_workers
from cputrain.data.statistics import Statistics


class Rows(torch.utils.data.Dataset[Any]):
    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds

    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> Any:
        time.sleep(self.seconds)
        return row, torch.rand(1), np.random.rand(), random.random()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(9))


def test_data_in_memory_needs_none() -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(9)), num_workers="auto", persistent_workers=True, timeout=3
    )
    assert loader.num_workers == 0
    assert "in memory" in loader.stats().workers_reason
    assert len(list(loader)) == 9


def test_a_quick_dataset_needs_none() -> None:
    loader = DataLoader(Rows(), num_workers="auto")
    assert loader.num_workers == 0
    assert "less than a worker would save" in loader.stats().workers_reason


def test_a_stream_gets_one_which_cannot_repeat_it() -> None:
    loader = DataLoader(Stream(), num_workers="auto")
    assert loader.num_workers == 1
    assert "iterable" in loader.stats().workers_reason
    assert len(list(loader)) == 9


@pytest.mark.parametrize(("cores", "expected"), [(1, 1), (2, 1), (16, 4), (256, 16)])
def test_a_slow_dataset_gets_a_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, cores: int, expected: int
) -> None:
    monkeypatch.setattr(auto_workers, "_num_cores", lambda: cores)
    probe: Any = torch.utils.data.DataLoader(Rows(0.002), 4)
    count, reason = auto_workers.initial_num_workers(probe)
    assert count == expected
    assert "ms" in reason


def test_measuring_leaves_every_random_state_as_it_was() -> None:
    def chance() -> list[Any]:
        return [torch.rand(1).item(), np.random.rand(), random.random()]

    found = []
    for workers in (0, "auto"):
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        generator = torch.Generator().manual_seed(2)
        loader: Any = DataLoader(Rows(), shuffle=True, num_workers=workers, generator=generator)
        assert loader.num_workers == 0
        found.append([chance(), [batch[0].item() for batch in loader], chance()])
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("making", "seconds", "expected"),
    # made in 20 s of worker time, consumed in 10, 5 and 100 s; and hardly any time to make
    [(20.0, 10.0, 3), (20.0, 5.0, 5), (20.0, 100.0, 1), (0.001, 10.0, 1), (1e6, 10.0, 15)],
)
def test_an_epoch_shows_how_many_are_needed(
    monkeypatch: pytest.MonkeyPatch, making: float, seconds: float, expected: int
) -> None:
    monkeypatch.setattr(auto_workers, "_num_cores", lambda: 16)
    after = Statistics(batches=100, samples_s=making)
    assert auto_workers.updated_num_workers(4, Statistics(), after, seconds) == expected


def test_too_short_an_epoch_shows_nothing() -> None:
    assert (
        auto_workers.updated_num_workers(4, Statistics(), Statistics(batches=9, samples_s=50), 1.0)
        == 4
    )


def test_the_next_epoch_has_as_many_as_the_last_one_showed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auto_workers, "_num_cores", lambda: 3)
    monkeypatch.setattr(auto_workers, "initial_num_workers", lambda _: (1, "for a start"))
    monkeypatch.setattr("cputrain.data.loader.initial_num_workers", lambda _: (1, "for a start"))
    loader = DataLoader(Rows(0.005), 4, num_workers="auto")
    for _ in loader:  # consumed at once: made slower than consumed
        time.sleep(0.001)
    assert loader.num_workers == 1
    for _ in loader:
        pass
    assert loader.num_workers == 2
    assert "2 instead of 1" in loader.stats().workers_reason
