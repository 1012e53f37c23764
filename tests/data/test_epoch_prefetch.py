"""Prefetching the next epoch with persistent workers does not change batches or random states."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from torch.utils.data import RandomSampler, SequentialSampler, default_collate

from cputrain.data import DataLoader
from cputrain.data.epoch_prefetch import may_change_between_epochs, predict_next_epoch

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
    leaves: tuple[int, int] | None = None,
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
            if (epoch, number) == leaves:
                break
    return [*seen, torch.rand(1).item()], loader


@pytest.mark.parametrize("rows", [40, 6, 3, 16])
@pytest.mark.parametrize(
    ("draws_in", "leaves", "own_generator"),
    [
        ((), None, False),
        ((), None, True),
        ((1,), None, False),
        ((), (1, 1), True),
        ((0, 2), (1, 1), True),
        ((), (1, 0), True),
    ],
)
@pytest.mark.parametrize(("workers", "factor"), [(2, 2), (1, 4), (2, 1)])
def test_batches_and_chance_are_as_under_torch(
    rows: int,
    draws_in: tuple[int, ...],
    leaves: tuple[int, int] | None,
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
    stopped = any("no longer prefetched" in note for note in loader.stats().notes)
    assert stopped <= (leaves is not None)


class Noted(torch.utils.data.Dataset[Any]):
    """Writes to a file for each row that it is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        path.touch()

    def __len__(self) -> int:
        return 16

    def __getitem__(self, row: int) -> int:
        with open(self.path, "ab", buffering=0) as file:
            file.write(b".")
        return row


def asked_for(dataset: Noted, arguments: dict[str, Any]) -> int:
    """Rows made once an epoch of 16 is over, and its workers have had time to go on."""
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True, **arguments)
    assert len(list(loader)) == 8
    deadline = time.monotonic() + (20 if loader._iterator._can_prefetch_epochs else 0.3)  # type: ignore[union-attr]
    path = Path(dataset.path)
    while path.stat().st_size < 24 and time.monotonic() < deadline:
        time.sleep(0.01)
    made = path.stat().st_size
    assert len(list(loader)) == 8
    return made


@pytest.mark.parametrize("arguments", [{}, {"shuffle": True, "generator": torch.Generator()}])
def test_the_next_epoch_is_being_made_before_it_is_asked_for(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    # an epoch, and what two workers prefetch
    assert asked_for(Noted(tmp_path / "asked"), arguments) == 16 + 2 * 2 * 2


def test_a_prefetched_epoch_comes_in_time() -> None:
    loader = DataLoader(
        Augmented(16), batch_size=2, num_workers=2, persistent_workers=True, timeout=20
    )
    for _ in range(EPOCHS):
        rows = [row for batch, *_ in loader for row in batch.tolist()]
        assert rows == list(range(16))


def test_nothing_is_made_early_where_its_order_may_still_change(tmp_path: Path) -> None:
    """Dropout on the CPU draws from the generator that such a sampler draws from."""
    assert asked_for(Noted(tmp_path / "asked"), {"shuffle": True}) == 16


def test_nothing_is_made_early_by_a_loader_that_may_not(tmp_path: Path) -> None:
    class Timely(DataLoader[Any]):
        begins_early = False

    loader = Timely(Noted(tmp_path / "asked"), num_workers=1, persistent_workers=True)
    assert len(list(loader)) == 16
    assert not loader._iterator._can_prefetch_epochs  # type: ignore[union-attr]


SHARED = multiprocessing.Value("i", 0)


def collate_with_shared(samples: list[Any]) -> Any:
    return samples, SHARED.value


class WithSlots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __call__(self, samples: Any) -> Any:
        return self.held, samples


class ReadsShared(Augmented):
    def __getitem__(self, row: int) -> Any:
        return row + SHARED.value


def test_what_workers_share_with_the_script_is_found() -> None:
    """The script may tell its workers the epoch by it, as it does for a curriculum."""
    shared = torch.zeros(1).share_memory_()
    held = np.frombuffer(multiprocessing.Array("i", 4).get_obj(), np.int32)
    for thing in (
        {"a": [{"b": (shared,)}]},
        WithSlots(SHARED),
        WithSlots(SHARED).__call__,
        held,
        held[1:],
        deque([SHARED]),
        collate_with_shared,
        partial(len, collate_with_shared),
        lambda samples: (samples, shared),
        ReadsShared(3),
        torch.eye(3).to_sparse(),  # of which torch cannot tell
    ):
        assert may_change_between_epochs(Augmented(3), thing), thing


def test_a_generator_that_could_not_be_put_back_is_found() -> None:
    dataset = Augmented(3)
    for generator in (np.random.default_rng(), random.Random(1), torch.Generator()):
        dataset.own = generator  # type: ignore[attr-defined]
        assert may_change_between_epochs(dataset)


def test_an_ordinary_dataset_holds_neither() -> None:
    around: dict[str, Any] = {"rows": list(range(100_000)), "arrays": [np.zeros(3)] * 9}
    around["itself"] = around
    assert not may_change_between_epochs(Augmented(3), default_collate, None)
    assert not may_change_between_epochs(around, lambda samples: samples, WithSlots("text"))


def test_foretelling_leaves_no_trace() -> None:
    generator = torch.Generator().manual_seed(1)
    for inner in (
        SequentialSampler(range(9)),
        RandomSampler(range(9), generator=generator),
        RandomSampler(range(9), replacement=True, num_samples=40, generator=generator),
    ):
        sampler = torch.utils.data.BatchSampler(inner, 2, False)
        before = torch.get_rng_state(), generator.get_state()
        coming = predict_next_epoch(sampler, 1, 3)
        assert torch.equal(before[0], torch.get_rng_state())
        assert torch.equal(before[1], generator.get_state())
        assert coming is not None
        assert coming.rows == list(sampler)[:3]


def test_a_sampler_that_could_notice_is_not_asked_early() -> None:
    class Noticing(SequentialSampler):
        pass

    assert (
        predict_next_epoch(torch.utils.data.BatchSampler(Noticing(range(4)), 2, False), 1, 2)
        is None
    )
    assert predict_next_epoch(RandomSampler(range(4)), 1, 2) is None
    drawn = RandomSampler(range(4))
    assert predict_next_epoch(torch.utils.data.BatchSampler(drawn, 2, False), 1, 2) is None
