"""Batches that workers stack are torch's, whatever the rows are, and so are the errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader

from cputrain.data import DataLoader
from tests.data.alike import assert_alike
from tests.data.both import assert_same, epochs, seeded
from tests.data.samples import Rows


class Labelled(torch.Tensor):
    """A subclass of tensors."""


Make = Callable[[int], Any]


def _large(row: int) -> torch.Tensor:
    return torch.arange(3000.0) + row


EQUAL: dict[str, Make] = {
    "float32, then float64": lambda row: _large(row).to((torch.float32, torch.float64)[row % 2]),
    "float64, then float32": lambda row: _large(row).to((torch.float64, torch.float32)[row % 2]),
    "float32, then int64": lambda row: _large(row).to((torch.float32, torch.int64)[row % 2]),
    "bfloat16, then float16": lambda row: _large(row).to((torch.bfloat16, torch.float16)[row % 2]),
    "int64, then bool": lambda row: (_large(row) % 2).to((torch.int64, torch.bool)[row % 2]),
    "complex, then real": lambda row: _large(row).to((torch.complex64, torch.float32)[row % 2]),
    "a parameter without gradients": lambda row: torch.nn.Parameter(_large(row), False),
    "transposed": lambda row: _large(row).view(50, 60).t(),
    "channels last": lambda row: (
        _large(row).view(3, 40, 25).unsqueeze(0).to(memory_format=torch.channels_last)[0]
    ),
    "strided": lambda row: _large(row)[:: 1 + row % 3][:900],
    "expanded": lambda row: torch.tensor([float(row)]).expand(4000),
    "a number": lambda row: torch.tensor(row),
    "nothing": lambda _: torch.empty(0, 3),
    "bool": lambda row: _large(row) % 2 == 0,
    "arrays of two kinds": lambda row: np.arange(3000, dtype=(np.float32, np.float64)[row % 2]),
    "NumPy numbers": lambda row: (np.float32, np.float64)[row % 2](row),
    "shared": lambda row: _large(row).share_memory_(),
    "detached": lambda row: (_large(row).requires_grad_() * 2).detach(),
}

FAILING: dict[str, Make] = {
    "int64, then float32": lambda row: _large(row).to((torch.int64, torch.float32)[row % 2]),
    "real, then complex": lambda row: _large(row).to((torch.float32, torch.complex64)[row % 2]),
    "bool, then int64": lambda row: _large(row).to((torch.bool, torch.int64)[row % 2]),
    "a leaf that requires gradients": lambda row: _large(row).requires_grad_(),
    "the second requires gradients": lambda row: _large(row).requires_grad_(bool(row % 2)),
    "a parameter": lambda row: torch.nn.Parameter(_large(row)),
    "the second is longer": lambda row: torch.ones(3000 + row),
    "the second is shorter": lambda row: torch.ones(3000 - row),
    "the second has one more dimension": lambda row: torch.ones((1,) * (row % 2) + (3000,)),
    "small, of two lengths": lambda row: torch.ones(1 + row),
    "the second is no tensor": lambda row: torch.ones(3000) if row % 2 == 0 else "text",
    "conjugate": lambda row: torch.complex(_large(row), _large(row)).conj(),
    "negative": lambda row: torch.complex(_large(row), _large(row)).conj().imag,
    "cpu, then meta": lambda row: torch.ones(3000, device=("cpu", "meta")[row % 2]),
    "sparse": lambda _: torch.eye(50).to_sparse(),
    "dense, then sparse": lambda row: torch.eye(50) if row % 2 == 0 else torch.eye(50).to_sparse(),
    "compressed": lambda _: torch.eye(50).to_sparse_csr(),
    "nested": lambda _: torch.nested.nested_tensor([torch.ones(3000), torch.ones(2)]),
    "objects": lambda _: np.array([object()]),
    "lists of two lengths": lambda row: [1] * (1 + row),
    "other keys": lambda row: {"a" if row % 2 == 0 else "b": torch.ones(3000)},
}


@pytest.mark.parametrize("name", EQUAL)
def test_rows_of_every_kind_are_stacked_as_by_torch(name: str) -> None:
    assert_same(epochs(Rows(EQUAL[name], 8), batch_size=4, num_workers=1))


@pytest.mark.parametrize("name", FAILING)
def test_rows_that_cannot_be_stacked_fail_as_in_torch(name: str) -> None:
    assert_same(epochs(Rows(FAILING[name], 8), batch_size=4, num_workers=1), fails=True)


def _subclass_rows(row: int) -> Any:
    return _large(row).as_subclass(Labelled) if row % 2 else _large(row)


def _subclass_first(row: int) -> Any:
    return _large(row).as_subclass(Labelled)


@pytest.mark.parametrize("make", [_subclass_rows, _subclass_first])
def test_subclasses_are_stacked_as_by_torch(make: Make) -> None:
    assert_same(epochs(Rows(make, 8), batch_size=4, num_workers=1))


ROWS_TO_DESCRIBE: dict[str, Make] = {
    "meta": lambda row: torch.ones(3000, device="meta") * row,
    "quantized": lambda row: torch.quantize_per_tensor(_large(row), 0.1, 10, torch.quint8),
}


@pytest.mark.parametrize("name", ROWS_TO_DESCRIBE)
def test_rows_without_plain_bytes_are_stacked_as_by_torch(name: str) -> None:
    def described(loader: Any) -> list[str]:
        dataset: Any = Rows(ROWS_TO_DESCRIBE[name], 8)
        return [
            f"{type(batch)} {batch} {batch.stride()}"
            for batch in loader(dataset, batch_size=4, num_workers=1)
        ]

    theirs, ours = (seeded(described, kind) for kind in (TorchLoader, DataLoader))
    assert ours == {**theirs, "random": ours["random"]}
    assert_alike(ours["random"], theirs["random"])
