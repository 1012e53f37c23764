"""torch's batches, in torch's order, with the random numbers left where torch leaves them."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

import cputrain.data
from tests.data import samples
from tests.data.both import Loader, assert_same, epochs, seeded
from tests.data.samples import ASKED, GATHERED, ODD_SAMPLERS, ROWS, SAMPLERS, Rows


def path_of(dataset: Any, **options: Any) -> str:
    """The way in which our loader makes its batches."""
    loader = cputrain.data.DataLoader(dataset, **options)
    for _ in loader:
        break
    return loader.stats().path


@pytest.mark.parametrize("name", GATHERED)
@pytest.mark.parametrize("workers", [0, 2])
def test_data_in_memory_is_gathered(name: str, workers: int) -> None:
    dataset = GATHERED[name]()
    assert_same(epochs(dataset, batch_size=4, num_workers=workers))
    # a list of rows is stacked as torch stacks it: what that saves is a worker
    expected = "process" if isinstance(dataset, list | tuple) and not workers else "memory"
    assert path_of(dataset, batch_size=4, num_workers=workers) == expected


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_other_data_is_asked_for_row_by_row(name: str, workers: int) -> None:
    assert_same(epochs(ASKED[name](), batch_size=4, shuffle=True, num_workers=workers))


@pytest.mark.parametrize(
    "name", ["a class of its own", "a length of its own", "a part with a way of its own"]
)
def test_a_class_that_changes_how_rows_are_taken_is_not_bypassed(name: str) -> None:
    assert path_of(ASKED[name](), batch_size=2) == "process"


@given(
    st.sampled_from(sorted({**GATHERED, **ASKED})),
    st.sampled_from(sorted(SAMPLERS)),
    st.sampled_from((1, 2, 5, 7, ROWS - 1, ROWS, 100)),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 2**40),
)
@settings(deadline=None, max_examples=300)
def test_any_data_in_any_order(
    name: str, order: str, batch_size: int, drop_last: bool, count: int, seed: int
) -> None:
    dataset = {**GATHERED, **ASKED}[name]()
    options = SAMPLERS[order](len(dataset), torch.Generator().manual_seed(seed))
    if "batch_sampler" not in options:
        options.update(batch_size=batch_size, drop_last=drop_last)
    assert_same(epochs(dataset, count, **options))


@given(
    st.sampled_from(sorted(SAMPLERS)),
    st.integers(1, 40),
    st.integers(1, 45),
    st.booleans(),
    st.integers(0, 5),
)
@settings(deadline=None, max_examples=200)
def test_an_epoch_left_early_leaves_the_random_numbers_where_torch_does(
    order: str, rows: int, batch_size: int, drop_last: bool, taken: int
) -> None:
    dataset = TensorDataset(torch.arange(rows))
    generator = torch.Generator()
    options = SAMPLERS[order](rows, generator)
    if "batch_sampler" not in options:
        options.update(batch_size=batch_size, drop_last=drop_last)

    def work(loader: Loader) -> Any:
        generator.manual_seed(5)
        made = loader(dataset, **options)
        found = []
        for _ in range(2):
            found.append([batch for batch, _ in zip(made, range(taken), strict=False)])
            found.append([generator.get_state(), torch.rand(1)])
        return found, list(made)

    assert_same(work)


@pytest.mark.parametrize("order", SAMPLERS)
@pytest.mark.parametrize("name", ["two tensors", "dictionaries"])
def test_any_order_over_workers(name: str, order: str) -> None:
    dataset = {**GATHERED, **ASKED}[name]()
    options = SAMPLERS[order](len(dataset), torch.Generator().manual_seed(3))
    if "batch_sampler" not in options:
        options.update(batch_size=5)
    assert_same(epochs(dataset, 2, num_workers=2, **options))


@pytest.mark.parametrize("order", ODD_SAMPLERS)
@pytest.mark.parametrize("name", ["two tensors", "a tensor", "arrays", "an array", "joined"])
@pytest.mark.parametrize("workers", [0, 1])
def test_rows_that_are_no_plain_numbers(name: str, order: str, workers: int) -> None:
    dataset = {**GATHERED, **ASKED}[name]()
    work = epochs(dataset, batch_size=3, num_workers=workers, **ODD_SAMPLERS[order](13, None))
    theirs = seeded(work, torch.utils.data.DataLoader)
    assert_same(work, fails="error" in theirs)


@pytest.mark.parametrize("batch_size", [None, 1, 7, 100])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("name", ["two tensors", "an array", "dictionaries", "large arrays"])
def test_batches_of_any_size_over_workers(
    name: str, batch_size: int | None, drop_last: bool
) -> None:
    if batch_size is None and drop_last:
        batch_size = 4
    dataset = {**GATHERED, **ASKED}[name]()
    assert_same(epochs(dataset, batch_size=batch_size, drop_last=drop_last, num_workers=2))


@pytest.mark.parametrize("name", ["random", "two tensors", "numbers of every kind"])
@pytest.mark.parametrize("order", ["in order", "shuffled", "shuffled by a generator", "weighted"])
@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_workers_that_stay_for_three_epochs(name: str, order: str, prefetch: int) -> None:
    dataset = {**GATHERED, **ASKED}[name]()
    options = SAMPLERS[order](len(dataset), torch.Generator().manual_seed(3))
    assert_same(
        epochs(
            dataset,
            3,
            batch_size=4,
            num_workers=2,
            persistent_workers=True,
            prefetch_factor=prefetch,
            **options,
        )
    )


@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_of_a_distributed_sampler(persistent: bool) -> None:
    dataset = Rows(samples.as_noise)

    def work(loader: Loader) -> Any:
        sampler: Any = DistributedSampler(dataset, num_replicas=2, rank=1)
        made = loader(
            dataset,
            batch_size=3,
            sampler=sampler,
            num_workers=2,
            persistent_workers=persistent,
        )
        found = []
        for epoch in range(3):
            sampler.set_epoch(epoch)
            found.append(list(made))
        return found

    assert_same(work)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["two tensors", "random"])
def test_batches_in_any_order_are_the_same_ones(name: str, workers: int) -> None:
    dataset = {**GATHERED, "random": Rows(samples.as_large_array)}[name]
    dataset = dataset() if callable(dataset) and not isinstance(dataset, Rows) else dataset

    def work(loader: Loader) -> Any:
        made = list(loader(dataset, batch_size=4, num_workers=workers, in_order=False))
        return sorted(made, key=lambda b: float(b[0].sum() if isinstance(b, list) else b.sum()))

    assert_same(work)


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_started_another_way(method: str) -> None:
    dataset = Rows(samples.as_noise)
    assert_same(
        epochs(
            dataset,
            2,
            batch_size=4,
            num_workers=2,
            persistent_workers=True,
            multiprocessing_context=method,
            collate_fn=samples.untouched,
        )
    )


def test_a_context_may_be_an_object() -> None:
    context = torch.multiprocessing.get_context("fork")
    assert_same(epochs(Rows(samples.as_array), num_workers=1, multiprocessing_context=context))


COLLATES: dict[str, Callable[[Any], Any]] = {
    "padded": samples.padded,
    "a list": samples.untouched,
    "lambda": lambda rows: {"n": len(rows), "rows": tuple(rows)},
}


@pytest.mark.parametrize("name", COLLATES)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_made_by_a_function_of_the_script(name: str, workers: int) -> None:
    dataset = Rows(samples.as_varying)
    assert_same(
        epochs(dataset, batch_size=4, num_workers=workers, collate_fn=COLLATES[name], shuffle=True)
    )


class Collating(Rows):
    """A dataset that is its own collate_fn."""

    def __call__(self, rows: Any) -> Any:
        return [self.rows, *rows]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_may_be_its_own_collate_fn(workers: int) -> None:
    dataset = Collating(samples.as_array)
    assert_same(epochs(dataset, batch_size=4, num_workers=workers, collate_fn=dataset))


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("batch_size", [None, 1, 4, 100])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_stream_shared_out_among_workers(
    workers: int, batch_size: int | None, drop_last: bool
) -> None:
    assert_same(
        epochs(
            samples.Stream(),
            2,
            batch_size=batch_size,
            drop_last=drop_last and batch_size is not None,
            num_workers=workers,
        )
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("told", [None, 5])
def test_a_stream_that_tells_its_length(workers: int, told: int | None) -> None:
    dataset = samples.LongStream(told=told)
    ours = assert_same(epochs(dataset, 2, batch_size=4, num_workers=workers))
    assert bool(ours["warnings"]) == (told is not None)


def test_a_stream_whose_workers_stay() -> None:
    assert_same(epochs(samples.Stream(), 3, batch_size=3, num_workers=2, persistent_workers=True))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_dataset(workers: int) -> None:
    for dataset in ([], TensorDataset(torch.empty(0, 3)), Rows(None, 0), np.empty((0, 2))):
        assert_same(epochs(dataset, 2, batch_size=4, num_workers=workers))
        assert_same(epochs(dataset, shuffle=True, num_workers=workers), fails=True)


SEEN: list[int] = []


def _begin(worker: int) -> None:
    torch.manual_seed(100 + worker)
    samples.get_worker_info().dataset.make = partial(_begun, worker)


def _begun(worker: int, row: int) -> Any:
    return worker, row, torch.rand(2)


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_begin_as_they_are_told(persistent: bool) -> None:
    assert_same(
        epochs(
            Rows(samples.as_array),
            2,
            batch_size=4,
            num_workers=2,
            worker_init_fn=_begin,
            persistent_workers=persistent,
        )
    )


def test_data_in_memory_is_not_gathered_where_workers_begin_as_they_are_told() -> None:
    dataset = TensorDataset(torch.arange(9))
    assert path_of(dataset, num_workers=1, worker_init_fn=_noted) == "workers"


def _noted(worker: int) -> None:
    SEEN.append(worker)


def test_workers_know_who_they_are() -> None:
    assert_same(epochs(Rows(samples.as_worker), 2, batch_size=4, num_workers=2))


def test_global_random_numbers_are_interleaved_with_the_scripts() -> None:
    def work(loader: Loader, **options: Any) -> Any:
        made = loader(TensorDataset(torch.arange(40)), batch_size=4, **options)
        return [(batch, torch.rand(2), random.random()) for _ in range(2) for batch in made]

    for options in ({}, {"shuffle": True}, {"sampler": samples.Endless(40)}):
        assert_same(partial(work, **options))


def test_a_loader_in_a_worker() -> None:
    assert_same(epochs(Rows(_inner), batch_size=2, num_workers=1))


def _inner(row: int) -> Any:
    kind = cputrain.data.DataLoader
    return list(kind(TensorDataset(torch.arange(row + 1)), batch_size=3))[-1][0].sum()


WRONG: dict[str, dict[str, Any]] = {
    "workers below zero": {"num_workers": -1},
    "time below zero": {"timeout": -1},
    "prefetching without workers": {"prefetch_factor": 2},
    "prefetching below zero": {"num_workers": 1, "prefetch_factor": -1},
    "staying without workers": {"persistent_workers": True},
    "two orders": {"sampler": [0], "shuffle": True},
    "two batchings": {"batch_sampler": [[0]], "batch_size": 3},
    "dropping without batches": {"batch_size": None, "drop_last": True},
    "no batch": {"batch_size": 0},
    "half a batch": {"batch_size": 1.5},
    "a method there is not": {"num_workers": 1, "multiprocessing_context": "thread"},
    "a method without workers": {"multiprocessing_context": "fork"},
    "a context that is none": {"num_workers": 1, "multiprocessing_context": 7},
    "time without workers": {"timeout": 3},
    "no order": {"sampler": 5},
    "no argument": {"batchsize": 5},
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_are_refused_in_torchs_words(name: str) -> None:
    for dataset in (TensorDataset(torch.arange(9)), Rows(samples.as_array)):
        work = epochs(dataset, **WRONG[name])
        assert_same(work, fails=True)


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [1]}, {"batch_sampler": [[1]]}])
def test_a_stream_takes_no_order(options: dict[str, Any]) -> None:
    def work(loader: Loader) -> Any:
        return loader(stream, **options)

    stream = samples.Stream()
    assert_same(work, fails=True)


def _shaped(row: int) -> Any:
    return torch.zeros(3 + row // 5)


def _large_and_shaped(row: int) -> Any:
    return torch.zeros(5000 + row // 5)


def _typed(row: int) -> Any:
    return torch.zeros(3, dtype=torch.float32 if row % 2 else torch.int64)


def _mixed(row: int) -> Any:
    return [1] * (1 + row % 2)


def _strange(row: int) -> Any:
    return object


def _failing(row: int) -> Any:
    if row == 6:
        raise ValueError(f"row {row} is bad")
    return row


def _key(row: int) -> Any:
    return {}["missing\nkey"]


class DemandingError(Exception):
    """An exception that cannot be made from a message."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


def _demanding(row: int) -> Any:
    raise DemandingError(1, 2)


def _gradients(row: int) -> Any:
    return torch.ones(2, requires_grad=True) * row


FAILING = (
    _shaped, _large_and_shaped, _mixed, _strange, _failing, _key, _demanding,
)  # fmt: skip


@pytest.mark.parametrize("make", FAILING, ids=lambda make: make.__name__)
def test_errors_are_torchs(make: Any) -> None:
    dataset = Rows(make)
    theirs = assert_same(epochs(dataset, batch_size=4), fails=True)["error"]
    ours = seeded(epochs(dataset, batch_size=4, num_workers=1), cputrain.data.DataLoader)["error"]
    assert ours[0] is (RuntimeError if make is _demanding else theirs[0])
    first, second, *_, last = ours[1].splitlines()
    assert first == f"Caught {theirs[0].__name__} in DataLoader worker process 0."
    assert second == "Original Traceback (most recent call last):"
    assert last.partition(": ")[2] == theirs[1]


@pytest.mark.parametrize("workers", [0, 1])
def test_numbers_of_two_types_become_what_torch_makes_of_them(workers: int) -> None:
    options = {"batch_size": 4, "sampler": [1, 2, 3, 0], "num_workers": workers}
    assert_same(epochs(Rows(_typed), **options))


def test_rows_with_gradients_are_refused_by_workers_in_torchs_words() -> None:
    assert_same(epochs(Rows(_gradients), batch_size=4))
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        list(cputrain.data.DataLoader(Rows(_gradients), batch_size=4, num_workers=1))


def test_a_loader_goes_on_after_an_error() -> None:
    def work(loader: Loader, workers: int) -> Any:
        made = iter(loader(Rows(_failing), batch_size=2, num_workers=workers))
        found = [next(made) for _ in range(3)]
        with pytest.raises(ValueError, match="row 6 is bad"):
            next(made)
        return found, (list(made) if workers else None)

    for workers in (0, 1, 2):
        assert_same(partial(work, workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", ["two tensors", "a tensor", "an array", "arrays", "joined"])
def test_a_row_that_is_not_there_is_torchs_error(name: str, workers: int) -> None:
    dataset = {**GATHERED, **ASKED}[name]()
    options = {"batch_size": 2, "sampler": [0, 1, 50]}
    theirs = seeded(epochs(dataset, **options), torch.utils.data.DataLoader)["error"]
    work = epochs(dataset, num_workers=workers, **options)
    ours = seeded(work, cputrain.data.DataLoader)["error"]
    assert ours[0] is theirs[0] is IndexError
    assert ours[1].rstrip().endswith(theirs[1])


def test_an_epoch_may_be_left_and_begun_again() -> None:
    def work(loader: Loader, dataset: Any, **options: Any) -> Any:
        made = loader(dataset, batch_size=2, shuffle=True, **options)
        found = []
        for taken in (3, 0, 1, 100, 2):
            found.append([batch for batch, _ in zip(made, range(taken), strict=False)])
        return found

    for dataset in (TensorDataset(torch.arange(20)), Rows(samples.as_noise)):
        assert_same(partial(work, dataset=dataset))
        assert_same(partial(work, dataset=dataset, num_workers=2))
        assert_same(partial(work, dataset=dataset, num_workers=2, persistent_workers=True))


def test_two_epochs_may_go_on_at_once() -> None:
    def work(loader: Loader, dataset: Any, workers: int) -> Any:
        made = loader(dataset, batch_size=2, shuffle=True, num_workers=workers)
        return list(zip(made, made, strict=True))

    for dataset in (TensorDataset(torch.arange(20)), Rows(samples.as_noise)):
        for workers in (0, 1):
            assert_same(partial(work, dataset=dataset, workers=workers))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_loader_can_be_copied_and_pickled(copied: Callable[[Any], Any], workers: int) -> None:
    def work(loader: Loader, dataset: Any) -> Any:
        made = loader(dataset, batch_size=3, shuffle=True, num_workers=workers)
        first = list(made)
        again = copied(made)
        assert type(again) is type(made)
        return first, list(again), list(made)

    for dataset in (TensorDataset(torch.arange(20)), Rows(samples.as_array)):
        assert_same(partial(work, dataset=dataset))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_cannot_be_pickled(workers: int) -> None:
    for dataset in (TensorDataset(torch.arange(20)), Rows(samples.as_array)):
        made = iter(cputrain.data.DataLoader(dataset, num_workers=workers))
        with pytest.raises(NotImplementedError, match="cannot be pickled"):
            pickle.dumps(made)


@pytest.mark.parametrize(
    "name",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"],
)
def test_what_a_loader_is_made_of_cannot_be_changed(name: str) -> None:
    def work(loader: Loader) -> Any:
        setattr(loader(TensorDataset(torch.arange(20))), name, None)

    assert_same(work, fails=True)


def test_what_else_a_loader_has_can_be_changed() -> None:
    def work(loader: Loader) -> Any:
        made = loader(TensorDataset(torch.arange(20)), batch_size=4)
        made.collate_fn = samples.untouched
        first = list(made)
        made.num_workers, made.prefetch_factor = 1, 2
        return first, list(made)

    assert_same(work)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.skipif(torch.accelerator.is_available(), reason="needs a machine without accelerator")
def test_pinned_memory_without_an_accelerator_warns(workers: int) -> None:
    for dataset in (TensorDataset(torch.arange(20)), Rows(samples.as_array)):
        ours = assert_same(epochs(dataset, num_workers=workers, pin_memory=True))
        assert "no accelerator is found" in ours["warnings"][0]


def test_a_collation_that_the_script_has_registered_is_used() -> None:
    from torch.utils.data._utils import collate

    def stack(batch: Any, *, collate_fn_map: Any = None) -> Any:
        return torch.stack(batch) + 1000

    original = collate.default_collate_fn_map[torch.Tensor]
    collate.default_collate_fn_map[torch.Tensor] = stack
    try:
        for workers in (0, 1):
            for dataset in (TensorDataset(torch.arange(20)), Rows(_typed, 1)):
                ours = assert_same(epochs(dataset, num_workers=workers))
                first = ours["result"][0][0][0]
                assert int(first[0] if isinstance(first, list) else first.view(-1)[0]) >= 1000
    finally:
        collate.default_collate_fn_map[torch.Tensor] = original


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_the_scripts_alone(workers: int) -> None:
    source = TensorDataset(torch.arange(600.0).view(20, 30))
    for dataset in (source, Subset(source, range(5, 15)), list(source.tensors[0])):
        for options in ({"shuffle": True}, {}):
            before = source.tensors[0].clone()
            for batch in cputrain.data.DataLoader(
                dataset, batch_size=4, num_workers=workers, **options
            ):
                (batch[0] if isinstance(batch, list) else batch).fill_(-1)
            assert torch.equal(source.tensors[0], before)


def test_a_shared_generator_serves_sampler_and_split() -> None:
    generator = torch.Generator()

    def work(loader: Loader) -> Any:
        generator.manual_seed(9)
        dataset = TensorDataset(torch.arange(31))
        sampler = RandomSampler(dataset, generator=generator)
        made = loader(dataset, batch_size=4, sampler=sampler, generator=generator)
        return [list(made), list(made), generator.get_state()]

    assert_same(work)


def test_rows_that_the_script_changes_between_epochs_are_read_anew() -> None:
    def work(loader: Loader) -> Any:
        dataset = TensorDataset(torch.arange(12.0))
        made = loader(dataset, batch_size=5)
        found = [list(made)]
        dataset.tensors[0].mul_(2)
        found.append(list(made))
        dataset.tensors = (torch.arange(7), torch.arange(7.0))
        found.append(list(loader(dataset, batch_size=5)))
        return found

    assert_same(work)


@pytest.mark.parametrize("workers", [0, 1, 2])
@pytest.mark.parametrize("stop", [0, 2, 5, 6, 8, 9])
@pytest.mark.parametrize("drop_last", [True, False])
def test_rows_in_memory_are_drawn_as_early_as_torch_draws_them(
    workers: int, stop: int, drop_last: bool
) -> None:
    """Whatever a script draws between two batches, and wherever it leaves an epoch."""
    data = TensorDataset(torch.arange(38))
    found = []
    for kind in (torch.utils.data.DataLoader, cputrain.data.DataLoader):
        for sampler in (None, samples.Endless(38)):
            torch.manual_seed(3)
            generator = torch.Generator().manual_seed(4)
            loader: Any = kind(
                data,
                batch_size=4,
                shuffle=None if sampler else True,
                sampler=sampler,
                num_workers=workers,
                generator=generator,
                drop_last=drop_last,
            )
            for _ in range(3):
                for number, (rows,) in enumerate(loader):
                    found.append(rows.tolist())
                    torch.rand(1)
                    if number == stop:
                        break
                found.append([torch.rand(1).item(), generator.get_state().tolist()])
    half = len(found) // 2
    assert found[half:] == found[:half]


def test_a_batch_that_fails_is_followed_by_the_next() -> None:
    data = TensorDataset(torch.arange(9))
    found = []
    for kind in (torch.utils.data.DataLoader, cputrain.data.DataLoader):
        iterator = iter(kind(data, batch_sampler=[[0, 1], [2, 99], [3, 4]]))
        for _ in range(4):
            try:
                found.append(next(iterator)[0].tolist())
            except (IndexError, StopIteration) as error:
                found.append(type(error))
    assert found[4:] == found[:4] == [[0, 1], IndexError, [3, 4], StopIteration]


def test_a_sampler_of_more_rows_than_there_are_fails_as_torchs() -> None:
    data = TensorDataset(torch.arange(9))
    for kind in (torch.utils.data.DataLoader, cputrain.data.DataLoader):
        for sampler in (SequentialSampler(range(12)), RandomSampler(range(12))):
            with pytest.raises(IndexError):
                list(kind(data, batch_size=4, sampler=sampler))


def test_a_long_list_of_tensors_is_not_looked_through() -> None:
    rows = [torch.zeros(1)] * 9
    rows[7] = torch.zeros(2)
    iterator = iter(cputrain.data.DataLoader(rows, 4))
    assert next(iterator).shape == (4, 1)
    with pytest.raises(RuntimeError, match="equal size"):
        list(iterator)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_cannot_be_pickled_and_torchs_error_says_so(workers: int) -> None:
    def pickled(loader: Loader) -> Any:
        return pickle.dumps(iter(loader(Rows(int), 2, num_workers=workers)))

    assert_same(pickled, fails=True)
