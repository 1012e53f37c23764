"""Datasets, samplers and functions of generated cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import (
    Dataset,
    IterableDataset,
    Sampler,
    Subset,
    TensorDataset,
    default_collate,
    get_worker_info,
)


class Plain(TensorDataset):
    pass


class Doubled(TensorDataset):
    def __getitem__(self, row: Any) -> Any:
        return tuple(part * 2 for part in super().__getitem__(row))


class Together(TensorDataset):
    def __getitems__(self, rows: list[int]) -> Any:
        return [self[row] for row in reversed(rows)]


class Shorter(TensorDataset):
    def __len__(self) -> int:
        return super().__len__() - 3


class Computed(TensorDataset):
    @property
    def tensors(self) -> Any:
        return tuple(tensor + 1 for tensor in self.kept)

    @tensors.setter
    def tensors(self, tensors: Any) -> None:
        self.kept = tensors


class Asked(TensorDataset):
    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return tuple(tensor + 1 for tensor in value) if name == "tensors" else value


class Named(Subset[Any]):
    pass


class Rows(Dataset[Any]):
    def __init__(self, n: int, make: Any) -> None:
        self.n, self.make = n, make

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, row: Any) -> Any:
        if row == 5:
            raise KeyError("bad\nrow")
        return self.make(row)


class Stream(IterableDataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for row in range(first, self.n, step):
            yield row, torch.rand(2)


class LongStream(Stream):
    def __len__(self) -> int:
        return self.n - 4


class Kept(torch.Tensor):
    pass


class Batches:
    def __init__(self, batches: Any, fails: int | None = None) -> None:
        self.batches, self.fails = batches, fails

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        for number, batch in enumerate(self.batches):
            if number == self.fails:
                raise ValueError(f"batch {number} cannot be drawn")
            yield batch


class NoOrder:
    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Iterator[Any]:
        raise OSError("no order today")


class Drawn(Sampler[int]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        for _ in range(self.n):
            yield int(torch.randint(self.n, ()))


def as_is(samples: Any) -> Any:
    return samples


def first_and_all(samples: Any) -> Any:
    whole = default_collate(samples)
    whole = whole[0] if isinstance(whole, list | tuple) else whole
    return whole[:1], whole
