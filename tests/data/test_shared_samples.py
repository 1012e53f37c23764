"""Samples in lists, dicts and arrays of objects: laid out once, and the same as torch's."""

from __future__ import annotations

import dataclasses
import enum
import multiprocessing
import operator
import os
import pathlib
import random
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from cputrain.bench.tree_memory import private_bytes
from cputrain.data import DataLoader, sample_sharing
from tests.data.alike import assert_alike
from tests.data.both import Loader, assert_same
from tests.selected import cases

SEED = int(os.environ.get("CASES_SEED") or random.randrange(1 << 32))

COUNT = 150

TEXT = "x" * 1000
"""In each sample, so that it takes no more memory where it is laid out."""


@pytest.fixture(autouse=True)
def _few_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay out what else would not be worth it."""
    monkeypatch.setattr(sample_sharing, "MIN_ROWS", COUNT)
    monkeypatch.setattr(sample_sharing, "MIN_BYTES", 0)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Pair(NamedTuple):
    text: str
    number: int


@dataclasses.dataclass
class Record:
    text: str
    boxes: list[float]


@dataclasses.dataclass(slots=True)
class Slotted:
    text: str
    boxes: list[float]


@dataclasses.dataclass(frozen=True)
class Frozen:
    text: str
    number: int


def _text(row: int) -> str:
    return f"{row}/{TEXT}"


def _of_many_types(row: int) -> Any:
    single = (row, row / 7, True, None, b"\0\xff", 1 << 70, 2 + 1j, "é\ud800", Decimal(row) / 8)
    return single[row % 9] if row % 3 else (_text(row), single)


KINDS: dict[str, Callable[[int], Any]] = {
    "strings": _text,
    "strings of all letters": lambda row: f"é{row}\ud800\U0001f600{TEXT}",
    "bytes": lambda row: _text(row).encode(),
    "tuples": lambda row: (_text(row), row, -row / 3, row % 2 == 0, None),
    "tuples of several lengths": lambda row: (_text(row), *range(row % 3)),
    "tuples in tuples": lambda row: ((_text(row), (row,)), (), (row, 1 << 66)),
    "tuples of lists": lambda row: (_text(row), [row, row + 0.5]),
    "many types": _of_many_types,
    "dicts": lambda row: {"text": _text(row), "number": row, "boxes": [[row, 1.5], []]},
    "dicts of several forms": lambda row: {f"key {row % 5}": _text(row), row % 3: None},
    "lists": lambda row: [_text(row), row],
    "arrays in dicts": lambda row: {
        "array": np.full((1 + row % 9, 3), row, dtype=np.float32),
        "scalar": np.float32(row),
        "texts": [_text(row + place) for place in range(5)],
    },
    "named tuples": lambda row: Pair(_text(row), row),
    "records": lambda row: Record(_text(row), [row / 2]),
    "records with slots": lambda row: Slotted(
        _text(row), [row / (place + 3) for place in range(20)]
    ),
    "frozen records": lambda row: Frozen(_text(row), row),
    "paths": lambda row: (pathlib.PurePosixPath(str(row)), Colour.RED, _text(row)),
}


class Held(Dataset[Any]):
    """Samples held in an attribute; `take` makes of one what the loader gets."""

    def __init__(self, samples: Any, take: Callable[[Any], Any] | None = None) -> None:
        self.samples = samples
        self.take = take or _as_it_is

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, row: Any) -> Any:
        return self.take(self.samples[row])


def _as_it_is(sample: Any) -> Any:
    return sample


def _keep(samples: list[Any]) -> list[Any]:
    """Collate nothing."""
    return samples


def _array(samples: list[Any]) -> Any:
    array = np.empty(len(samples), dtype=object)
    for row, sample in enumerate(samples):
        array[row] = sample
    return array


CONTAINERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "dict by number": lambda samples: dict(enumerate(samples)),
    "dict by name": lambda samples: {f"sample {row}": one for row, one in enumerate(samples)},
    "array": _array,
}


def _dataset(kind: str, container: str, take: Callable[[Any], Any] | None = None) -> Held:
    return Held(CONTAINERS[container]([KINDS[kind](row) for row in range(COUNT)]), take)


def _rows(dataset: Any, count: int, seed: int = SEED) -> list[Any]:
    """Some rows, several of them twice."""
    samples = getattr(dataset, "samples", dataset)
    rows = list(samples) if isinstance(samples, dict) else range(-COUNT, COUNT)
    return random.Random(seed).choices(rows, k=count // 2) * 2


def _is_shared(loader: Any) -> bool:
    return any("are in shared memory" in note for note in loader.stats().notes)


def _epochs(dataset: Any, count: int = 2, *, shared: bool = True, **options: Any) -> Any:
    options = {"num_workers": 2, "batch_size": 7, "collate_fn": _keep, **options}
    options.setdefault("sampler", _rows(dataset, 60))

    def work(loader: Loader) -> Any:
        made = loader(dataset, **options)
        batches = [list(made) for _ in range(count)]
        if isinstance(made, DataLoader):
            assert _is_shared(made) == shared, made.stats().notes
        return batches

    return work


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("kind", KINDS)
def test_samples_are_those_of_torch(kind: str, container: str) -> None:
    assert_same(_epochs(_dataset(kind, container)))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize(
    ("kind", "container"),
    [("tuples", "list"), ("dicts", "dict by name"), ("records", "array")],
)
def test_workers_of_all_start_methods_have_them(kind: str, container: str, method: str) -> None:
    assert_same(_epochs(_dataset(kind, container), multiprocessing_context=method))


@pytest.mark.parametrize("method", cases(["fork", "spawn"], ["fork"]))
@pytest.mark.parametrize("kind", ["tuples", "dicts"])
def test_a_list_that_is_the_dataset(kind: str, method: str) -> None:
    samples = [KINDS[kind](row) for row in range(COUNT)]
    assert_same(_epochs(samples, multiprocessing_context=method))


def test_parts_of_other_datasets() -> None:
    parts = [_dataset("tuples", "list"), _dataset("dicts", "list")]
    whole = ConcatDataset([*parts, Subset(parts[0], list(range(0, COUNT, 2)))])
    rows = random.Random(SEED).sample(range(len(whole)), 60)
    assert_same(_epochs(whole, sampler=rows))


class Aliased(Held):
    """Two names for one list, as in torchvision's ImageFolder."""

    def __init__(self, samples: Any) -> None:
        super().__init__(samples)
        self.images = self.samples


@pytest.mark.parametrize("method", cases(["fork", "spawn"], ["fork"]))
def test_two_names_of_one_list(method: str) -> None:
    dataset = Aliased([_text(row) for row in range(COUNT)])
    assert_same(_epochs(dataset, multiprocessing_context=method))


def _change(sample: Any) -> Any:
    sample["number"] += 1
    sample["boxes"][1].append(sample["number"])
    return {**sample, "boxes": [list(box) for box in sample["boxes"]]}


def _add_an_image(sample: Any) -> Any:
    if "image" not in sample:
        sample["image"] = torch.full((3,), sample["number"])
    return sample


_KEPT: list[Any] = []


def _keep_and_change_later(sample: Any) -> Any:
    _KEPT.append(sample["boxes"])
    if len(_KEPT) % 3 == 0:
        _KEPT[random.Random(len(_KEPT)).randrange(len(_KEPT))].append(len(_KEPT))
    return {**sample, "boxes": str(sample["boxes"])}


@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("take", [_change, _add_an_image, _keep_and_change_later])
@pytest.mark.parametrize("persistent", [False, True])
def test_what_a_worker_changes_stays_with_it(
    take: Callable[[Any], Any], container: str, persistent: bool
) -> None:
    dataset = _dataset("dicts", container, take)
    assert_same(_epochs(dataset, 3, persistent_workers=persistent))


def _replace(dataset: Held, rows: list[int]) -> None:
    for row in rows:
        dataset.samples[row] = (_text(-row), row, 0.5, None, True)


def _change_in_place(dataset: Held, rows: list[int]) -> None:
    for row in rows:
        dataset.samples[row]["boxes"].append(row)


def _shuffle(dataset: Held, rows: list[int]) -> None:
    random.Random(rows[0]).shuffle(dataset.samples)


def _equal_and_other(dataset: Held, rows: list[int]) -> None:
    for row in rows:
        dataset.samples[row] = tuple(
            float(x) if type(x) is int else x for x in dataset.samples[row]
        )


@pytest.mark.parametrize(
    ("kind", "change"),
    [("tuples", _replace), ("dicts", _change_in_place), ("tuples", _shuffle),
     ("dicts", _shuffle), ("tuples", _equal_and_other)],
)  # fmt: skip
def test_what_the_script_changes_between_epochs_shows(
    kind: str, change: Callable[[Held, list[int]], None]
) -> None:
    rows = [row % COUNT for row in _rows([], 60)]

    def work(loader: Loader) -> Any:
        dataset = _dataset(kind, "list")
        made = loader(dataset, batch_size=7, num_workers=2, collate_fn=_keep, sampler=rows)
        batches = []
        for _ in range(3):
            batches.append(list(made))
            change(dataset, rows[:20])
        if isinstance(made, DataLoader):
            assert _is_shared(made), made.stats().notes
        return batches

    assert_same(work)


class Missing(Held):
    """A sample, or the error for a key that is in `wrong`."""

    def __init__(self, samples: Any, wrong: list[Any]) -> None:
        super().__init__(samples)
        self.wrong = wrong

    def __getitem__(self, row: int) -> Any:
        if row == len(self.wrong):
            return self.samples[self.wrong[0]]
        try:
            return self.samples[self.wrong[row]]
        except Exception as error:
            return type(error), str(error)


WRONG = [COUNT, -COUNT - 1, "no key", 1.5, (1, 2), [COUNT], {}, "sample 150"]


@pytest.mark.parametrize("container", CONTAINERS)
def test_an_error_is_that_of_the_container(container: str) -> None:
    dataset = Missing(_dataset("tuples", container).samples, WRONG)
    assert_same(_epochs(dataset, 1, sampler=range(len(WRONG))))


@pytest.mark.parametrize("container", CONTAINERS)
def test_an_error_has_the_frames_of_the_script(container: str) -> None:
    dataset = Missing(_dataset("tuples", container).samples, WRONG)
    assert_same(_epochs(dataset, 1, sampler=[len(WRONG)]), fails=True)


class Sorting(Held):
    def __getitem__(self, row: Any) -> Any:
        return sorted(self.samples)[row]


class Passing(Held):
    def __getitem__(self, row: Any) -> Any:
        return _taken(self, row)


def _taken(dataset: Held, row: int) -> Any:
    return dataset.samples[row]


class Writing(Held):
    def __getitem__(self, row: Any) -> Any:
        self.samples[row] = ""
        return row


class Asking(Held):
    def __getitem__(self, row: Any) -> Any:
        return vars(self)["samples"][row]


class Handing(Held):
    """Uses the list by a method that another one calls."""

    def __getitem__(self, row: Any) -> Any:
        return self.find()[row]

    def find(self) -> Any:
        return self.samples


NAMESPACE: dict[str, Any] = {"Held": Held}
exec(
    "class Unread(Held):\n    def __getitem__(self, row):\n        return self.samples[row]\n",
    NAMESPACE,
)


@pytest.mark.parametrize("kind", [Sorting, Passing, Writing, Asking, Handing, NAMESPACE["Unread"]])
def test_other_uses_are_left_alone(kind: type[Held]) -> None:
    dataset = kind([_text(row) for row in range(COUNT)])
    work = _epochs(dataset, 1, shared=False, sampler=list(range(9)))
    assert_same(work)


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        (lambda row: {_text(row)}, "builtins.set"),
        (lambda row: [SHARED, _text(row)], "other objects refer to them"),
        (lambda row: [np.zeros(300)[2:], _text(row)], "an array that is a view"),
        (lambda row: (torch.full((300,), row), _text(row)), "torch.Tensor"),
        (lambda row: (_text(row), lambda: row), "builtins.function"),
    ],
)
def test_samples_that_cannot_be_rebuilt_stay(sample: Callable[[int], Any], reason: str) -> None:
    dataset = Held([sample(row) for row in range(COUNT)], str)
    loader = DataLoader(dataset, num_workers=1, sampler=[1, 2, 3])
    assert len(list(loader)) == 3
    (note,) = loader.stats().notes
    assert "Held.samples are not put into shared memory" in note
    assert reason in note


SHARED: list[int] = []


def test_it_can_be_switched_off() -> None:
    loader = DataLoader(_dataset("strings", "list"), num_workers=1, sampler=[1])
    loader.shares_samples = False
    assert list(loader) == [[_text(1)]]
    assert not loader.stats().notes


def _measured(sample: Any) -> int:
    return private_bytes(os.getpid()) if random.random() < 0.001 else 0


def _most(dataset: Any, method: str) -> int:
    """Of what workers took, the most."""
    loader = DataLoader(
        dataset, batch_size=500, num_workers=2, multiprocessing_context=method, shuffle=True
    )
    return max(int(batch.max()) for batch in loader)


@pytest.mark.parametrize("method", cases(["fork", "spawn"], ["fork"]))
@pytest.mark.parametrize("container", cases(["list", "dict by number", "array"], ["array"]))
def test_workers_need_no_more_memory_than_empty_ones(container: str, method: str) -> None:
    samples = [{"name": f"{row:0100d}", "number": row} for row in range(100_000)]
    empty = max(_most(Held(range(20_000), _measured), method) for _ in range(2))
    full = Held(CONTAINERS[container](samples), _measured)
    del samples
    assert _most(full, method) <= 1.2 * empty


def test_all_that_lists_and_dicts_can_do() -> None:
    samples = [f"{row % 7}{TEXT}" for row in range(COUNT)]
    operations: list[Callable[[Any], Any]] = [
        lambda x: x[3:9], lambda x: x[::-100], lambda x: x[np.int64(4)], lambda x: x[True],
        lambda x: list(x)[:5], lambda x: x.index(samples[5]), lambda x: x.count(samples[5]),
        lambda x: (x.append("a"), x[-1], len(x)), lambda x: (x.pop(), len(x)),
        lambda x: (x.sort(), x[0], x[-1]), lambda x: (x.reverse(), x[0]), lambda x: x.copy()[1],
        lambda x: operator.add(x, ["a"])[-1], lambda x: len(operator.add(["a"], x)),
        lambda x: x == samples,
        lambda x: samples == x, lambda x: samples[5] in x, lambda x: x.clear(),
        lambda x: (random.Random(1).shuffle(x), x[:3]), lambda x: len(x * 2),
        lambda x: max(x), lambda x: repr(x)[:50], lambda x: x.__setitem__(3, "b"),
        lambda x: (x.__delitem__(3), len(x)), lambda x: x.extend(["c"]),
        lambda x: next(reversed(x)), lambda x: x["a"], lambda x: x[COUNT],
        lambda x: np.array(x).shape, lambda x: bool(x),
        lambda x: [*x][7], lambda x: isinstance(x, list), lambda x: x.insert(0, "d"),
        lambda x: x < ["z"], lambda x: sorted(x)[:3], lambda x: "".join(x)[:5],
    ]  # fmt: skip
    assert_same(_epochs(Held(samples, _Doing(operations)), 1, sampler=[0], num_workers=1))
    by_name = {f"sample {row}": one for row, one in enumerate(samples)}
    operations = [
        lambda x: list(x)[:5], lambda x: x.get("sample 7"), lambda x: x.get("no", 3),
        lambda x: list(x.items())[3], lambda x: list(x.values())[3], lambda x: list(x.keys())[-1],
        lambda x: "sample 8" in x, lambda x: 3 in x, lambda x: x[3], lambda x: x["no"], len,
        lambda x: x.pop("sample 1"), lambda x: x.update(a=1), lambda x: x | {"b": 1},
        lambda x: ({"b": 1} | x)["sample 2"], lambda x: {**x}["sample 3"],
        lambda x: dict(x) == by_name,
        lambda x: x == by_name, lambda x: by_name == x, lambda x: x.setdefault("c", 4), bool,
        lambda x: (x.popitem(), len(x)), lambda x: x.clear(), lambda x: x[[1]],
        lambda x: next(reversed(x)), lambda x: x.copy()["sample 4"], lambda x: repr(x)[:40],
        lambda x: x.__delitem__("sample 9"), lambda x: isinstance(x, dict),
    ]  # fmt: skip
    dataset = Held(by_name, _Doing(operations))
    assert_same(_epochs(dataset, 1, sampler=["sample 0"], num_workers=1))


class _Doing:
    """Does in a worker what a script may do with the container that its dataset has there."""

    def __init__(self, operations: list[Callable[[Any], Any]]) -> None:
        self.operations = operations

    def __call__(self, _sample: Any) -> Any:
        results = []
        for operation in self.operations:
            read, write = multiprocessing.Pipe()
            if (pid := os.fork()) == 0:  # each finds it as it was
                try:
                    dataset: Any = torch.utils.data.get_worker_info()
                    samples = dataset.dataset.samples
                    result = operation(samples), len(samples)
                except Exception as error:
                    result = type(error).__name__, str(error)
                write.send(result)
                os._exit(0)
            results.append(read.recv())
            os.waitpid(pid, 0)
        return results


def test_the_operations_are_compared() -> None:
    """What is done in the worker comes back: a list that lacks one sample is found out."""
    samples = [_text(row) for row in range(COUNT)]
    first = list(DataLoader(Held(samples, _Doing([len])), num_workers=1, sampler=[0]))
    second = list(DataLoader(Held(samples[1:], _Doing([len])), num_workers=1, sampler=[0]))
    with pytest.raises(AssertionError):
        assert_alike(first, second)
