"""Cases of the loader benchmark: datasets, loader arguments, and the interval that is timed."""

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


class LoaderCase(Record):
    """Dataset, loader arguments, and what is timed."""

    name: str
    """Unique name: "tensors-64-0"."""

    title: str
    """Heading of the case's table."""

    dataset: Callable[[], Any]
    """Factory of the dataset; called once."""

    batch_size: int | None
    """Batch size; None to load samples without collating."""

    num_workers: int
    """Worker processes or threads of each loader."""

    timed: Literal["epoch", "first batch", "second epoch"] = "epoch"
    """Interval that is timed.

    "epoch" and "second epoch" last from `iter()` to the last batch, "first batch" from constructing
    the loader to its first batch.
    """

    has_cache: bool = False
    """Whether cputrain's loader runs with cache="memory"."""

    is_shuffled: bool = True
    """Whether samples are taken in random order."""

    start_method: str | None = None
    """Start method of worker processes; None for the platform's default."""

    num_repeats: int = 1
    """How many times one run constructs the loader and iterates over it."""

    has_samples_alone: bool = False
    """Whether to measure creating the samples without a loader, too."""

    empty_dataset: Callable[[], Any] | None = None
    """Factory of a dataset that stores no samples, the baseline of worker memory.

    None if worker memory is not measured.
    """

    def num_batches(self, data: Any) -> int:
        """Return the number of batches in an epoch."""
        return -(-len(data) // (self.batch_size or 1))


class GeneratedImages(Dataset[tuple[torch.Tensor, int]]):
    """Random images generated from their index; a stand-in for decoding."""

    def __init__(self, num_samples: int, image_size: int) -> None:
        self.num_samples, self.image_size = num_samples, image_size

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        generator = np.random.default_rng(index)
        image = generator.integers(0, 256, (3, self.image_size, self.image_size), dtype=np.uint8)
        return torch.from_numpy(image), index % 10


class StringListDataset(Dataset[torch.Tensor]):
    """Long list of Python strings, which is pickled for every spawned worker."""

    def __init__(self, num_samples: int) -> None:
        self.names = [_file_name(index) for index in range(num_samples)]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, len(self.names[index])])


class JpegDataset(Dataset[tuple[torch.Tensor, int]]):
    """JPEG files in memory, decoded and resized."""

    def __init__(self, num_samples: int, size: tuple[int, int], image_size: int) -> None:
        from PIL import Image

        self.image_size = image_size
        generator = np.random.default_rng(0)
        self.files = []
        for _ in range(num_samples):
            small_image = generator.integers(0, 256, (24, 32, 3), dtype=np.uint8)
            file = io.BytesIO()
            Image.fromarray(small_image).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG")
            self.files.append(file.getvalue())

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        from PIL import Image

        with Image.open(io.BytesIO(self.files[index])) as image:
            resized = image.resize((self.image_size, self.image_size), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.array(resized)).permute(2, 0, 1).contiguous(), index % 10


class ObjectListDataset(Dataset[torch.Tensor]):
    """List of Python objects; a sample reads one of them."""

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> torch.Tensor:
        record = self.records[index]
        return torch.tensor([index, len(record) if isinstance(record, str) else record["label"]])


def _objects(make_record: Callable[[int], Any], num_samples: int) -> ObjectListDataset:
    return ObjectListDataset([make_record(index) for index in range(num_samples)])


def _file_name(index: int) -> str:
    return f"pictures/{index:032d}.jpg"


def _annotation(index: int) -> dict[str, Any]:
    box = [index / 7, index / 5, index / 3, 1.0]
    return {"file": _file_name(index), "label": index % 1000, "boxes": [box]}


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


def cases(group: str, quick: bool = False) -> list[LoaderCase]:
    """Return the cases of a group; with `quick`, too small for meaningful timings."""
    if group == "tensors":
        rows, width = (512, 16) if quick else (100_000, 512)
        return [
            LoaderCase(
                name=f"tensors-{batch}-{workers}",
                title=f"tensors in memory: {rows:,} × {width}, batch {batch}, {workers} workers",
                dataset=lambda: tensors(rows, width),
                batch_size=batch,
                num_workers=workers,
            )
            for batch in (64, 256)
            for workers in (0, 2)
        ]
    if group == "pictures":
        num_samples, image_size, batch = (64, 16, 8) if quick else (2048, 224, 32)
        return [
            LoaderCase(
                name=f"pictures-{workers}",
                title=f"pictures made in Python: {num_samples:,} × 3 × {image_size} × "
                f"{image_size} bytes, batch {batch}, {workers or 'no'} workers",
                dataset=lambda: GeneratedImages(num_samples, image_size),
                batch_size=batch,
                num_workers=workers,
                has_samples_alone=workers > 0,
            )
            for workers in (2, 0)
        ]
    if group == "rows":
        rows, width, image_size = (64, 16, 16) if quick else (5_000, 512, 32)
        return [
            LoaderCase(
                name="rows-0",
                title=f"rows that are not collated: {rows:,} × {width}, no workers",
                dataset=lambda: tensors(rows, width),
                batch_size=None,
                num_workers=0,
            ),
            LoaderCase(
                name="rows-process",
                title=f"rows that are not collated: {rows:,} pictures made in Python, "
                f"3 × {image_size} × {image_size} bytes, no workers",
                dataset=lambda: GeneratedImages(rows, image_size),
                batch_size=None,
                num_workers=0,
            ),
            LoaderCase(
                name="rows-2",
                title=f"rows that are not collated: {rows:,} × {width} in shared memory, 2 workers",
                dataset=lambda: _shared(tensors(rows, width)),
                batch_size=None,
                num_workers=2,
            ),
        ]
    if group == "subset":
        rows, times = (900, 1) if quick else (900_000, 50)
        return [
            LoaderCase(
                name="subset",
                title=f"first batch: a Subset of {rows:,} rows, no workers, {times} times",
                dataset=lambda: Subset(tensors(rows, 4), list(reversed(range(rows)))),
                batch_size=64,
                num_workers=0,
                timed="first batch",
                num_repeats=times,
                is_shuffled=False,
            )
        ]
    if group == "cached":
        if find_spec("PIL") is None:
            return []
        num_samples, size, image_size = (32, (50, 40), 16) if quick else (2000, (500, 375), 224)
        return [
            LoaderCase(
                name=f"cached-{timed.partition(' ')[0]}",
                title=f"{num_samples:,} JPEG files of {size[0]} × {size[1]}, decoded, resized to "
                f"{image_size} × {image_size}, batch 32, 2 workers: "
                f"{'the first' if timed == 'epoch' else 'a later'} "
                'epoch; cputrain with cache="memory"',
                dataset=lambda: JpegDataset(num_samples, size, image_size),
                batch_size=32,
                num_workers=2,
                timed=timed,
                has_cache=True,
                is_shuffled=timed == "epoch",  # shuffled, the second epoch would have another order
            )
            for timed in _EPOCHS
        ]
    if group == "objects":
        num_samples = 2_000 if quick else 1_000_000
        kinds: dict[str, Callable[[int], Any]] = {"strings": _file_name, "dicts": _annotation}
        return [
            LoaderCase(
                name=f"objects-{kind}-{method}",
                title=f"a list of {num_samples:,} {kind}, batch 256, 2 workers by {method}",
                dataset=partial(_objects, kinds[kind], num_samples),
                batch_size=256,
                num_workers=2,
                start_method=method,
                empty_dataset=lambda: GeneratedImages(512, 1),
            )
            for kind, method in (("strings", "fork"), ("dicts", "fork"), ("dicts", "spawn"))
        ]
    num_samples = 2_000 if quick else 500_000
    return [
        LoaderCase(
            name="start",
            title=f"first batch: a list of {num_samples:,} strings, 2 spawned workers",
            dataset=lambda: StringListDataset(num_samples),
            batch_size=64,
            num_workers=2,
            timed="first batch",
            start_method="spawn",
        )
    ]
