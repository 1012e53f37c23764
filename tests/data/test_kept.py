"""What is kept of a loader, and for how long: memory, descriptors, processes."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import IterableDataset

from cputrain.data import DataLoader

SIZE = 1 << 20


class Big(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: int = 12) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.full((SIZE,), row, dtype=torch.uint8)


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> Any:
        return [f"text {row} {n}" for n in range(500)]


def shared_bytes() -> int:
    """Of this process's mappings of anonymous files, what is in memory; others may have some."""
    total, ours = 0, False
    with open("/proc/self/smaps") as file:
        for line in file:
            if "-" in line.split(" ", 1)[0]:
                ours = "memfd:cputrain" in line
            elif ours and line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


@pytest.fixture
def no_collection() -> Iterator[None]:
    """What is let go only by the collector of cycles is not let go."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_epochs_leave_no_descriptor_and_no_memory(no_collection: None) -> None:
    list(DataLoader(Big(), 4, num_workers=2))
    before, shared = len(os.listdir("/proc/self/fd")), shared_bytes()
    for stop in (99, 99, 1, 0):
        for number, batch in enumerate(DataLoader(Big(), 4, num_workers=2)):  # noqa: B007
            if number == stop:
                break
    del batch
    assert len(os.listdir("/proc/self/fd")) == before
    assert shared_bytes() <= shared


def test_a_batch_that_is_kept_does_not_keep_the_others(no_collection: None) -> None:
    before, kept = shared_bytes(), []
    for _ in range(4):
        for batch in DataLoader(Big(16), 4, num_workers=2):
            last = batch
        kept.append(last)
        del batch, last
    assert shared_bytes() - before <= 4 * 4 * SIZE * 1.5
    assert all((batch[:, 7] == torch.arange(12, 16)).all() for batch in kept)


def test_a_script_that_forks_at_every_step_does_not_grow() -> None:
    sizes = []
    for number, batch in enumerate(DataLoader(Big(160), 4, num_workers=1)):
        child = os.fork()
        if not child:
            os._exit(int(batch[0, 0] != number * 4))
        assert os.waitpid(child, 0)[1] == 0
        sizes.append(shared_bytes())
    assert max(sizes[20:]) <= max(sizes[:20])


def test_a_fork_does_not_end_the_workers_of_its_parent() -> None:
    iterator: Any = iter(DataLoader(Big(40), 4, num_workers=1))
    next(iterator)
    child = os.fork()
    if not child:
        try:
            iterator._shutdown_workers()
            del iterator
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [int(batch[0, 0]) for batch in iterator] == list(range(4, 40, 4))


def test_leaving_early_does_not_wait_for_results_that_nobody_reads() -> None:
    """Lists of texts go through the pipes, and many of them fill those."""
    iterator: Any = iter(
        DataLoader(Numbers(), 2, num_workers=1, prefetch_factor=30, collate_fn=list)
    )
    next(iterator)
    (worker,) = iterator._workers
    del iterator
    assert worker.exitcode == 0  # it was not terminated, as one that does not end in time is


def test_an_array_beside_its_tensor_is_its_own() -> None:
    def both(samples: list[torch.Tensor]) -> Any:
        stacked = torch.stack(samples)
        return {"tensor": stacked, "array": stacked.numpy(), "again": stacked}

    for batch in DataLoader(Big(4), 2, num_workers=1, collate_fn=both):
        before = batch["array"].copy()
        batch["tensor"].add_(1)
        assert np.array_equal(batch["array"], before)
        assert torch.equal(batch["again"], batch["tensor"])


class Endless(IterableDataset[torch.Tensor]):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __iter__(self) -> Iterator[torch.Tensor]:
        for row in range(self.rows):
            yield torch.tensor([row % 1000])


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.long
def test_many_batches_take_no_more_than_the_first_ones() -> None:
    rows, seen, total = 60_000, [], 0
    loader: Any = DataLoader(Endless(rows), None, num_workers=1, prefetch_factor=16)
    for number, batch in enumerate(loader):
        total += int(batch)
        if number % 6_000 == 3_000:
            seen.append((resident(), len(os.listdir("/proc/self/fd"))))
    assert total == rows // 1000 * sum(range(1000))
    assert len({descriptors for _, descriptors in seen}) == 1
    assert max(size for size, _ in seen) - seen[0][0] < 8 << 20
