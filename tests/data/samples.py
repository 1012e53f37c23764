"""Datasets, samplers and functions that loaders are asked about; workers import this module."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import (
    ConcatDataset,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    StackDataset,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

ROWS = 23


class Pair(NamedTuple):
    x: Any
    y: Any


class Rows(Dataset[Any]):
    """Rows made by a function of their number."""

    def __init__(self, make: Any, rows: int = ROWS) -> None:
        self.make = make
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: Any) -> Any:
        if not -self.rows <= row < self.rows:
            raise IndexError(f"there is no row {row}")
        return self.make(int(row))


def as_array(row: int) -> Any:
    return np.full((3, 2), row, dtype=np.float32)


def as_large_array(row: int) -> Any:
    return np.arange(5000, dtype=np.int32) + row


def as_dict(row: int) -> Any:
    return OrderedDict(image=torch.full((3, 40, 40), row), label=row, name=f"row {row}", z=0.5)


def as_pair(row: int) -> Any:
    return Pair(torch.tensor([row, -row]), (row, [float(row), b"bytes"]))


def as_numbers(row: int) -> Any:
    return row, row / 2, np.float64(row), np.int16(row), bool(row % 2), torch.tensor(row)


def as_varying(row: int) -> Any:
    return torch.arange(row * 700)


def as_noise(row: int) -> Any:
    return row, torch.rand(2500), random.random(), np.random.rand(3)


def as_worker(row: int) -> Any:
    info = get_worker_info()
    if info is None:
        return row, -1, -1, 0
    return row, info.id, info.num_workers, info.seed, len(info.dataset)


def padded(samples: list[Any]) -> Any:
    return {
        "rows": torch.nn.utils.rnn.pad_sequence(samples, batch_first=True),
        "lengths": [len(sample) for sample in samples],
    }


def untouched(samples: Any) -> Any:
    return samples


class ByBatch(Rows):
    """Rows that can be asked for together."""

    def __getitems__(self, rows: list[int]) -> Any:
        return [(row, torch.full((4,), len(rows))) for row in rows]


class Doubled(TensorDataset):
    """Rows that are not those of its tensors."""

    def __getitem__(self, row: Any) -> Any:
        return tuple(part * 2 for part in super().__getitem__(row))


class Reversed(Subset[Any]):
    """Rows that are asked for together, in another order."""

    def __getitems__(self, rows: list[int]) -> Any:
        return super().__getitems__(rows[::-1])


class Shorter(TensorDataset):
    """Fewer rows than its tensors have."""

    def __len__(self) -> int:
        return super().__len__() - 3


class Stream(IterableDataset[Any]):
    """Rows shared out among workers."""

    def __init__(self, rows: int = ROWS, told: int | None = None) -> None:
        self.rows = rows
        self.told = told

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(first, self.rows, step):
            yield row, torch.full((2100,), row), torch.rand(1)


class LongStream(Stream):
    """A stream that knows its length."""

    def __len__(self) -> int:
        return self.rows if self.told is None else self.told


def tensors(count: int = 2, rows: int = ROWS) -> tuple[torch.Tensor, ...]:
    kinds = (
        torch.arange(rows * 6, dtype=torch.float32).view(rows, 3, 2),
        torch.arange(rows) * 7,
        torch.arange(rows * 900, dtype=torch.int16).view(rows, 900).to(torch.bfloat16),
    )
    return kinds[:count]


def of_type(dtype: torch.dtype) -> TensorDataset:
    return TensorDataset((torch.arange(ROWS * 2) % 50).to(dtype).view(ROWS, 2))


GATHERED: dict[str, Any] = {
    "one tensor": lambda: TensorDataset(*tensors(1)),
    "two tensors": lambda: TensorDataset(*tensors(2)),
    "three tensors": lambda: TensorDataset(*tensors(3)),
    "a subset": lambda: Subset(TensorDataset(*tensors()), [5, 3, 3, 20, 0, 22]),
    "a subset by tensor": lambda: Subset(TensorDataset(*tensors()), torch.arange(3, 19)),
    "a subset by array": lambda: Subset(TensorDataset(*tensors()), np.arange(3, 19, 2)),
    "a subset by range": lambda: Subset(TensorDataset(*tensors()), range(22, 2, -3)),
    "a subset from the end": lambda: Subset(TensorDataset(*tensors()), [-1, -5, 3]),
    "joined": lambda: ConcatDataset([TensorDataset(*tensors(2, n)) for n in (3, 9, 1)]),
    "joined by +": lambda: TensorDataset(*tensors(1)) + TensorDataset(*tensors(1, 5)),
    "joined and parted": lambda: Subset(
        ConcatDataset([TensorDataset(*tensors(2, n)) for n in (4, 11, 2)]), [16, 4, 3, 0, 9, 9]
    ),
    "a part of a part": lambda: Subset(
        Subset(TensorDataset(*tensors()), range(0, 20, 2)), [1, 9, 0]
    ),
    "split at random": lambda: random_split(
        TensorDataset(*tensors()), [15, 8], torch.Generator().manual_seed(3)
    )[0],
    "a list of tensors": lambda: list(torch.arange(40.0).view(10, 4)),
    "a tuple of numbers in tensors": lambda: tuple(torch.arange(9)),
    "a tensor": lambda: torch.arange(ROWS * 4).view(ROWS, 4),
    "numbers": lambda: torch.arange(ROWS, dtype=torch.float64),
    "transposed": lambda: TensorDataset(torch.arange(ROWS * 5).view(5, ROWS).t()),
    "channels last": lambda: TensorDataset(
        torch.arange(ROWS * 24.0).view(ROWS, 3, 4, 2).contiguous(memory_format=torch.channels_last)
    ),
    "expanded": lambda: TensorDataset(torch.arange(3).expand(ROWS, 3)),
    "every second": lambda: TensorDataset(
        torch.arange(ROWS * 2)[::2], torch.eye(ROWS * 2)[::2, 1:]
    ),
    "rows without numbers": lambda: TensorDataset(torch.empty(ROWS, 0, 2)),
    "not a number": lambda: TensorDataset(torch.tensor([0.0, -0.0, torch.nan, torch.inf] * 3)),
    "an array": lambda: np.arange(ROWS * 3.0).reshape(ROWS, 3),
    "an array in Fortran's order": lambda: np.asfortranarray(np.arange(ROWS * 3).reshape(ROWS, 3)),
}
"""Datasets whose batches are gathered."""

for _kind in ("float32", "float64", "float16", "int8", "int64", "uint8", "bool"):
    GATHERED[f"{_kind} array"] = lambda kind=_kind: (
        np.arange(ROWS * 2).astype(kind).reshape(ROWS, 2)
    )
for _dtype in (torch.bool, torch.complex64, torch.float16, torch.bfloat16, torch.int8):
    GATHERED[str(_dtype)] = lambda dtype=_dtype: of_type(dtype)

ASKED: dict[str, Any] = {
    "numbers in an array": lambda: np.arange(ROWS, dtype=np.float32),
    "dates": lambda: [str(row) for row in range(ROWS)],
    "an array that is fixed": lambda: (
        np.frombuffer(bytes(range(46)), np.uint8).reshape(ROWS, 2).copy()[::-1]
    ),
    "arrays": lambda: Rows(as_array),
    "large arrays": lambda: Rows(as_large_array),
    "dictionaries": lambda: Rows(as_dict),
    "named tuples": lambda: Rows(as_pair),
    "numbers of every kind": lambda: Rows(as_numbers),
    "rows asked for together": lambda: ByBatch(None),
    "a class of its own": lambda: Doubled(*tensors()),
    "a class of its own, parted": lambda: Subset(Doubled(*tensors()), [1, 5, 2]),
    "a part with a way of its own": lambda: Reversed(TensorDataset(*tensors()), [1, 5, 2, 9]),
    "a length of its own": lambda: Shorter(*tensors()),
    "kinds joined": lambda: ConcatDataset(
        [TensorDataset(torch.arange(5)), TensorDataset(torch.arange(4))]
    ),
    "stacked": lambda: StackDataset(a=TensorDataset(*tensors(1)), b=torch.arange(ROWS)),
    "Python's numbers": lambda: list(range(ROWS)),
    "rows with gradients": lambda: TensorDataset(torch.ones(ROWS, 2)),
    "random": lambda: Rows(as_noise),
}
"""Datasets that are asked for each row, or may be."""

for _dtype in (torch.uint16, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2):
    ASKED[str(_dtype)] = lambda dtype=_dtype: of_type(dtype)


class Endless(Sampler[int]):
    """Rows that draw on the global random numbers, one by one."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.rows):
            yield int(torch.randint(self.rows, ()))


class Backwards(Endless):
    """Rows counted from the end."""

    def __iter__(self) -> Iterator[Any]:
        yield from range(-1, -self.rows - 1, -1)


class Tensors(Endless):
    """Rows that are tensors."""

    def __iter__(self) -> Iterator[Any]:
        yield from torch.arange(self.rows)


class Arrays(Endless):
    """Rows that are numbers of NumPy's."""

    def __iter__(self) -> Iterator[Any]:
        yield from np.arange(self.rows)


class Batches(Sampler[list[int]]):
    """Batches that grow."""

    def __init__(self, rows: int, kind: type = list) -> None:
        self.rows = rows
        self.kind = kind

    def __len__(self) -> int:
        return self.rows // 2

    def __iter__(self) -> Iterator[Any]:
        for size in range(1, self.rows // 2 + 1):
            yield self.kind(range(size))


def batches_of(sampler: Any) -> Any:
    """What a sampler of single rows needs to stand alone."""
    return lambda rows, generator: {"sampler": sampler(rows, generator)}


SAMPLERS: dict[str, Any] = {
    "in order": lambda _rows, _generator: {},
    "shuffled": lambda _rows, _generator: {"shuffle": True},
    "shuffled by a generator": lambda _rows, generator: {"shuffle": True, "generator": generator},
    "a generator for seeds alone": lambda _rows, generator: {"generator": generator},
    "replaced": batches_of(lambda n, _g: RandomSampler(range(n), replacement=True)),
    "replaced by a generator": batches_of(
        lambda n, g: RandomSampler(range(n), replacement=True, num_samples=3 * n, generator=g)
    ),
    "fewer": batches_of(lambda n, _g: RandomSampler(range(n), num_samples=max(1, n // 2))),
    "more": batches_of(lambda n, g: RandomSampler(range(n), num_samples=2 * n + 1, generator=g)),
    "twice": batches_of(lambda n, g: RandomSampler(range(n), num_samples=2 * n, generator=g)),
    "fewer rows than there are": batches_of(lambda n, _g: RandomSampler(range(1 + n // 2))),
    "some": batches_of(lambda n, g: SubsetRandomSampler(range(0, n, 2), generator=g)),
    "weighted": batches_of(
        lambda n, g: WeightedRandomSampler([1.0 + row for row in range(n)], n, generator=g)
    ),
    "a list": batches_of(lambda n, _g: [0, n - 1, 0]),
    "distributed": batches_of(
        lambda n, _g: DistributedSampler(range(n), num_replicas=3, rank=1, seed=4)
    ),
    "drawn one by one": batches_of(lambda n, _g: Endless(n)),
    "batches that grow": lambda rows, _generator: {"batch_sampler": Batches(rows)},
    "batches as tuples": lambda rows, _generator: {"batch_sampler": Batches(rows, tuple)},
}
"""Orders, as arguments of a loader."""

ODD_SAMPLERS: dict[str, Any] = {
    "from the end": batches_of(lambda n, _g: Backwards(n)),
    "tensors": batches_of(lambda n, _g: Tensors(n)),
    "arrays": batches_of(lambda n, _g: Arrays(n)),
}
"""Orders that not every dataset takes."""
