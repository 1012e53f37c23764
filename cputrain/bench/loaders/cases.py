"""The data that loaders are compared on, and what is timed with each."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import Dataset, TensorDataset

from cputrain.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

SEED = 11
"""Of the order in which every loader takes the rows."""


class Case(Record):
    """One comparison."""

    name: str
    """Unique: "tensors-64-0"."""

    title: str
    """What a table is headed with."""

    dataset: Callable[[], Any]
    """Makes the data, once."""

    batch: int
    """Rows in a batch."""

    workers: int
    """Processes or threads that each loader may start."""

    timed: Literal["epoch", "first batch"] = "epoch"
    """From `iter()` to the end of all batches, or from making the loader to the first one."""

    start_method: str | None = None
    """How workers start; None for the system's way."""

    samples_alone: bool = False
    """Whether making the samples is also measured alone."""


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Random pictures, each made from its number: stands for decoding."""

    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        picture = generator.integers(0, 256, (3, self.side, self.side), dtype=np.uint8)
        return torch.from_numpy(picture), index % 10


class Names(Dataset[torch.Tensor]):
    """A long list of Python strings, which every spawned worker has to be given."""

    def __init__(self, count: int) -> None:
        self.names = [f"pictures/{number:032d}.jpg" for number in range(count)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, len(self.names[index])])


@cache
def tensors(rows: int, width: int) -> TensorDataset:
    """Rows of random numbers with a label each."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(rows, width, generator=generator),
        torch.randint(10, (rows,), generator=generator),
    )


def cases(group: str, quick: bool = False) -> list[Case]:
    """The cases of a group; quick ones are too small to say anything about speed."""
    if group == "tensors":
        rows, width = (512, 16) if quick else (100_000, 512)
        return [
            Case(
                name=f"tensors-{batch}-{workers}",
                title=f"tensors in memory: {rows:,} × {width}, batch {batch}, {workers} workers",
                dataset=lambda: tensors(rows, width),
                batch=batch,
                workers=workers,
            )
            for batch in (64, 256)
            for workers in (0, 2)
        ]
    if group == "pictures":
        count, side, batch = (64, 16, 8) if quick else (2048, 224, 32)
        return [
            Case(
                name="pictures",
                title=f"pictures made in Python: {count:,} × 3 × {side} × {side} bytes, "
                f"batch {batch}, 2 workers",
                dataset=lambda: Pictures(count, side),
                batch=batch,
                workers=2,
                samples_alone=True,
            )
        ]
    count = 2_000 if quick else 500_000
    return [
        Case(
            name="start",
            title=f"first batch: a list of {count:,} strings, 2 spawned workers",
            dataset=lambda: Names(count),
            batch=64,
            workers=2,
            timed="first batch",
            start_method="spawn",
        )
    ]
