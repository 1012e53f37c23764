"""With persistent workers the next epoch begins early, and nobody could tell from the batches."""

from __future__ import annotations

import multiprocessing
import random
import time
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import RandomSampler, SequentialSampler

from cputrain.data import DataLoader
from cputrain.data.next_epoch import foretell, may_change_between_epochs

EPOCHS = 4


class Augmented(torch.utils.data.Dataset[Any]):
    """Rows, and numbers from every source of chance that a worker has."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        return row, torch.rand(1), np.random.rand(), random.random()


def epochs(
    kind: Any,
    dataset: Any,
    *,
    draws_in: tuple[int, ...] = (),
    leaves: int | None = None,
    own_generator: bool = False,
    **arguments: Any,
) -> tuple[list[Any], Any]:
    """Every batch of some epochs and the random number after them, and the loader."""
    torch.manual_seed(0)
    loader = kind(
        dataset,
        batch_size=4,
        shuffle=True,
        persistent_workers=True,
        generator=torch.Generator().manual_seed(5) if own_generator else None,
        **arguments,
    )
    seen: list[Any] = []
    for epoch in range(EPOCHS):
        for number, batch in enumerate(loader):
            seen.append([part.tolist() for part in batch])
            if epoch in draws_in:
                torch.rand(1)
            if epoch == leaves and number == 1:
                break
    return [*seen, torch.rand(1).item()], loader


@pytest.mark.parametrize("rows", [40, 6, 3, 23])
@pytest.mark.parametrize(
    ("draws_in", "leaves", "own_generator"),
    [((), None, False), ((), None, True), ((1,), None, False), ((), 1, False), ((0, 2), 1, True)],
)
@pytest.mark.parametrize(("workers", "factor"), [(2, 2), (1, 3), (2, 1)])
def test_batches_and_chance_are_as_under_torch(
    rows: int,
    draws_in: tuple[int, ...],
    leaves: int | None,
    own_generator: bool,
    workers: int,
    factor: int,
) -> None:
    how: dict[str, Any] = {
        "draws_in": draws_in,
        "leaves": leaves,
        "own_generator": own_generator,
        "num_workers": workers,
        "prefetch_factor": factor,
    }
    theirs, _ = epochs(torch.utils.data.DataLoader, Augmented(rows), **how)
    ours, loader = epochs(DataLoader, Augmented(rows), **how)
    assert ours == theirs
    foretold_wrongly = bool(draws_in) and not own_generator
    assert any("no longer begun early" in note for note in loader.stats().notes) <= (
        foretold_wrongly or leaves is not None
    )


class Counting(torch.utils.data.Dataset[Any]):
    """Counts in shared memory what has been asked of it."""

    def __init__(self, asked: Any) -> None:
        self.asked = [asked]

    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> int:
        with self.asked[0].get_lock():
            self.asked[0].value += 1
        return row


class Hidden:
    """Keeps what it has from those who look for it."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __getitem__(self, place: int) -> Any:
        return self.held


def test_the_next_epoch_is_being_made_before_it_is_asked_for() -> None:
    counter = multiprocessing.Value("i", 0)
    dataset = Counting(counter)
    dataset.asked = Hidden(counter)  # type: ignore[assignment]
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True)
    assert len(list(loader)) == 8
    deadline = time.monotonic() + 20
    while counter.value < 24 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert counter.value == 16 + 2 * 2 * 2  # an epoch, and what two workers prefetch
    assert len(list(loader)) == 8


def test_nothing_is_made_early_of_a_dataset_that_shares_memory_with_the_script() -> None:
    """The script may tell its workers the epoch by it, as it does for a curriculum."""
    counter = multiprocessing.Value("i", 0)
    loader = DataLoader(Counting(counter), batch_size=2, num_workers=2, persistent_workers=True)
    for epoch in (1, 2, 3):
        assert len(list(loader)) == 8
        assert counter.value == 16 * epoch


def test_shared_parts_of_a_dataset_are_found_at_some_depth() -> None:
    shared = torch.zeros(1).share_memory_()
    assert may_change_between_epochs({"a": [{"b": (shared,)}]})
    assert may_change_between_epochs(Counting(multiprocessing.Value("i", 0)))
    assert not may_change_between_epochs(Augmented(3))
    around: dict[str, Any] = {"rows": list(range(100_000))}
    around["itself"] = around
    assert not may_change_between_epochs(around)


def test_foretelling_leaves_no_trace() -> None:
    generator = torch.Generator().manual_seed(1)
    for inner in (
        SequentialSampler(range(9)),
        RandomSampler(range(9)),
        RandomSampler(range(9), generator=generator),
        RandomSampler(range(9), replacement=True, num_samples=40, generator=generator),
    ):
        sampler = torch.utils.data.BatchSampler(inner, 2, False)
        before = torch.get_rng_state(), generator.get_state()
        coming = foretell(sampler, 1, 3)
        assert torch.equal(before[0], torch.get_rng_state())
        assert torch.equal(before[1], generator.get_state())
        assert coming is not None
        assert coming.rows == list(sampler)[:3]


def test_a_sampler_that_could_notice_is_not_asked_early() -> None:
    class Noticing(SequentialSampler):
        pass

    assert foretell(torch.utils.data.BatchSampler(Noticing(range(4)), 2, False), 1, 2) is None
    assert foretell(RandomSampler(range(4)), 1, 2) is None
