"""A loader that goes on where another one stopped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.utils.data
from torch.utils.data import BatchSampler, IterableDataset, Sampler, TensorDataset

from cputrain.data import DataLoader
from cputrain.errors import UsageError

ROWS = 23
BATCH = 4
BATCHES = 6


class Asked(torch.utils.data.Dataset[Any]):
    """Remembers which rows it was asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> int:
        self.asked.append(row)
        return row


def values(batch: Any) -> list[int]:
    found: list[int] = (batch[0] if isinstance(batch, list) else batch).tolist()
    return found


def saved(state: dict[str, Any]) -> dict[str, Any]:
    """As it is after a checkpoint was written and read, without unpickling code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    read: dict[str, Any] = torch.load(file, weights_only=True)
    return read


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
@pytest.mark.parametrize("own_generator", [True, False])
@pytest.mark.parametrize("epoch", [0, 2])
def test_the_rest_of_the_epoch_and_the_next_one_are_as_they_would_have_been(
    in_memory: bool, workers: int, persistent: bool, own_generator: bool, epoch: int
) -> None:
    def make(dataset: Any) -> Any:
        return DataLoader(
            dataset,
            BATCH,
            shuffle=True,
            num_workers=workers,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(5) if own_generator else None,
        )

    dataset: Any = TensorDataset(torch.arange(ROWS)) if in_memory else Asked()
    torch.manual_seed(0)
    loader = make(dataset)
    for _ in range(epoch):
        list(loader)
    states, whole = [loader.state_dict()], []
    for batch in loader:
        whole.append(values(batch))
        states.append(loader.state_dict())
    over = loader.state_dict()
    following = [values(batch) for batch in loader]
    for done in range(BATCHES):
        torch.manual_seed(99)
        other = make(dataset)
        other.load_state_dict(saved(states[done]))
        before = torch.get_rng_state()
        if isinstance(dataset, Asked):
            dataset.asked.clear()
        assert [values(batch) for batch in other] == whole[done:]
        if isinstance(dataset, Asked) and workers == 0:
            assert dataset.asked == [row for rows in whole[done:] for row in rows]
        assert torch.equal(before, torch.get_rng_state())  # the script's own numbers go on
        if own_generator:
            assert [values(batch) for batch in other] == following
    torch.manual_seed(99)
    other = make(dataset)
    other.load_state_dict(saved(over))
    if own_generator or workers == 0 or not persistent:
        assert [values(batch) for batch in other] == following


def test_a_sampler_of_the_scripts_own_is_asked_for_rows_but_the_dataset_is_not() -> None:
    class Backwards(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(ROWS - 1, -1, -1))

        def __len__(self) -> int:
            return ROWS

    dataset = Asked()
    loader = DataLoader(dataset, batch_sampler=BatchSampler(Backwards(), 5, False))
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    rest = [values(batch) for batch in iterator]
    dataset.asked.clear()
    other = DataLoader(dataset, batch_sampler=BatchSampler(Backwards(), 5, False))
    other.load_state_dict(state)
    assert [values(batch) for batch in other] == rest
    assert len(dataset.asked) == ROWS - 10


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(ROWS))


class Seekable(IterableDataset[int]):
    def __init__(self) -> None:
        self.at = 0
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < ROWS:
            self.at += 1
            self.read += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_is_read_again_and_it_is_said(workers: int) -> None:
    loader = DataLoader(Stream(), BATCH, num_workers=workers)
    iterator = iter(loader)
    next(iterator)
    next(iterator)
    state = loader.state_dict()
    rest = [values(batch) for batch in iterator]
    other = DataLoader(Stream(), BATCH, num_workers=workers)
    other.load_state_dict(state)
    assert [values(batch) for batch in other] == rest
    assert any("loaded again" in note for note in other.stats().notes)


def test_a_stream_that_can_be_set_is_not_read_again() -> None:
    loader = DataLoader(Seekable(), BATCH)
    iterator = iter(loader)
    next(iterator)
    state = saved(loader.state_dict())
    rest = [values(batch) for batch in iterator]
    dataset = Seekable()
    other = DataLoader(dataset, BATCH)
    other.load_state_dict(state)
    assert [values(batch) for batch in other] == rest
    assert dataset.read == ROWS - BATCH


def test_a_state_that_is_none_is_refused_in_words() -> None:
    loader = DataLoader(Asked(), BATCH)
    good = loader.state_dict()
    for state in (
        None,
        {},
        {**good, "version": 2},
        {**good, "batches": "x"},
        {**good, "batches": -1},
    ):
        with pytest.raises(UsageError, match=r"load_state_dict\(state\)"):
            loader.load_state_dict(state)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="generators"):
        DataLoader(Asked(), generator=torch.Generator()).load_state_dict(good)
    assert next(values(batch) for batch in loader) == [0, 1, 2, 3]
