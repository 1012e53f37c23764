"""Datasets of the loader benchmark, and the part of loading that is timed."""

from __future__ import annotations

import io
from functools import cache, partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from cputrain.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SEED = 11
"""Seed of the sampler, the same for every loader."""


class Case(Record):
    """Dataset, loader arguments, and what is timed."""

    name: str
    """Unique name: "tensors-64-0"."""

    title: str
    """Description shown in the table's heading."""

    dataset: Callable[[], Any]
    """Factory of the dataset; called once."""

    batch: int | None
    """Batch size; None to load samples without collating."""

    workers: int
    """Worker processes or threads of each loader."""

    timed: Literal["epoch", "first batch", "second epoch"] = "epoch"
    """Interval that is timed.

    "epoch" and "second epoch" last from `iter()` to the last batch, "first batch" from constructing
    the loader to its first batch.
    """

    cache: bool = False
    """Whether cputrain's loader runs with cache="memory"."""

    is_shuffled: bool = True
    """Whether samples are taken in random order."""

    start_method: str | None = None
    """Start method of worker processes; None for the platform's default."""

    times: int = 1
    """Repetitions within one run."""

    samples_alone: bool = False
    """Whether to measure creating the samples without a loader as well."""

    empty: Callable[[], Any] | None = None
    """Factory of a dataset without stored samples, the baseline for worker memory; None to skip."""

    def num_batches(self, data: Any) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(data) // (self.batch or 1))


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Random images generated from their index; a stand-in for decoding."""

    def __init__(self, count: int, side: int) -> None:
        self.count, self.side = count, side

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        picture = generator.integers(0, 256, (3, self.side, self.side), dtype=np.uint8)
        return torch.from_numpy(picture), index % 10


class Names(Dataset[torch.Tensor]):
    """Long list of Python strings, which is pickled for every spawned worker."""

    def __init__(self, count: int) -> None:
        self.names = [_name(number) for number in range(count)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, len(self.names[index])])


class Photos(Dataset[tuple[torch.Tensor, int]]):
    """JPEG files in memory, decoded and resized."""

    def __init__(self, count: int, size: tuple[int, int], side: int) -> None:
        from PIL import Image

        self.side = side
        generator = np.random.default_rng(0)
        self.files = []
        for _ in range(count):
            few = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(few).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index])) as picture:
            small = picture.resize((self.side, self.side), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(small)).permute(2, 0, 1).contiguous(), index % 10


class Objects(Dataset[torch.Tensor]):
    """List of Python objects; a sample reads one of them."""

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> torch.Tensor:
        record = self.records[index]
        return torch.tensor([index, len(record) if isinstance(record, str) else record["label"]])


def _objects(make: Callable[[int], Any], count: int) -> Objects:
    return Objects([make(number) for number in range(count)])


def _name(number: int) -> str:
    return f"pictures/{number:032d}.jpg"


def _annotation(number: int) -> dict[str, Any]:
    box = [number / 7, number / 5, number / 3, 1.0]
    return {"file": _name(number), "label": number % 1000, "boxes": [box]}


def _shared(data: TensorDataset) -> TensorDataset:
    copies: list[Any] = [tensor.clone() for tensor in data.tensors]
    return TensorDataset(*(copy.share_memory_() for copy in copies))


@cache
def tensors(rows: int, width: int) -> TensorDataset:
    """Return a TensorDataset of random rows with labels; cached."""
    generator = torch.Generator().manual_seed(0)
    return TensorDataset(
        torch.randn(rows, width, generator=generator),
        torch.randint(10, (rows,), generator=generator),
    )


_EPOCHS: tuple[Literal["epoch"], Literal["second epoch"]] = ("epoch", "second epoch")


def cases(group: str, quick: bool = False) -> list[Case]:
    """Return the cases of a group; with `quick`, too small for meaningful timings."""
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
                name=f"pictures-{workers}",
                title=f"pictures made in Python: {count:,} × 3 × {side} × {side} bytes, "
                f"batch {batch}, {workers or 'no'} workers",
                dataset=lambda: Pictures(count, side),
                batch=batch,
                workers=workers,
                samples_alone=workers > 0,
            )
            for workers in (2, 0)
        ]
    if group == "rows":
        rows, width, side = (64, 16, 16) if quick else (5_000, 512, 32)
        return [
            Case(
                name="rows-0",
                title=f"rows that are not collated: {rows:,} × {width}, no workers",
                dataset=lambda: tensors(rows, width),
                batch=None,
                workers=0,
            ),
            Case(
                name="rows-process",
                title=f"rows that are not collated: {rows:,} pictures made in Python, "
                f"3 × {side} × {side} bytes, no workers",
                dataset=lambda: Pictures(rows, side),
                batch=None,
                workers=0,
            ),
            Case(
                name="rows-2",
                title=f"rows that are not collated: {rows:,} × {width} in shared memory, 2 workers",
                dataset=lambda: _shared(tensors(rows, width)),
                batch=None,
                workers=2,
            ),
        ]
    if group == "subset":
        rows, times = (900, 1) if quick else (900_000, 50)
        return [
            Case(
                name="subset",
                title=f"first batch: a Subset of {rows:,} rows, no workers, {times} times",
                dataset=lambda: Subset(tensors(rows, 4), list(reversed(range(rows)))),
                batch=64,
                workers=0,
                timed="first batch",
                times=times,
                is_shuffled=False,
            )
        ]
    if group == "cached":
        if find_spec("PIL") is None:
            return []
        count, size, side = (32, (50, 40), 16) if quick else (2000, (500, 375), 224)
        return [
            Case(
                name=f"cached-{timed.partition(' ')[0]}",
                title=f"{count:,} JPEG files of {size[0]} × {size[1]}, decoded and made {side} × "
                f"{side}, batch 32, 2 workers: {'the first' if timed == 'epoch' else 'a later'} "
                'epoch; cputrain with cache="memory"',
                dataset=lambda: Photos(count, size, side),
                batch=32,
                workers=2,
                timed=timed,
                cache=True,
                is_shuffled=timed == "epoch",  # shuffled, the second epoch would have another order
            )
            for timed in _EPOCHS
        ]
    if group == "objects":
        count = 2_000 if quick else 1_000_000
        kinds: dict[str, Callable[[int], Any]] = {"strings": _name, "dicts": _annotation}
        return [
            Case(
                name=f"objects-{kind}-{method}",
                title=f"a list of {count:,} {kind}, batch 256, 2 workers by {method}",
                dataset=partial(_objects, kinds[kind], count),
                batch=256,
                workers=2,
                start_method=method,
                empty=lambda: Pictures(512, 1),
            )
            for kind, method in (("strings", "fork"), ("dicts", "fork"), ("dicts", "spawn"))
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
