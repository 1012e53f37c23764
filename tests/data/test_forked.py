"""What processes that a script forks may do with a batch, as with torch's own."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.data

from cputrain.data import DataLoader

KINDS: dict[str, Callable[[list[int]], Any]] = {
    "array": lambda rows: np.array(rows, np.int64).repeat(4096),
    "tensor": lambda rows: torch.tensor(rows).repeat_interleave(4096),
    "array of little": np.array,
    "arrays and tensors": lambda rows: {
        "array": np.array(rows).repeat(4096),
        "tensors": [torch.tensor(rows).repeat_interleave(4096) for _ in range(2)],
    },
    "an array and its tensor": lambda rows: [
        array := np.array(rows).repeat(4096),
        torch.from_numpy(array),
    ],
}


class Rows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> int:
        return row


def leaves_of(batch: Any) -> list[Any]:
    if isinstance(batch, dict):
        return [leaf for part in batch.values() for leaf in leaves_of(part)]
    if isinstance(batch, list):
        return [leaf for part in batch for leaf in leaves_of(part)]
    return [batch]


def in_child(action: Callable[[], object]) -> None:
    child = os.fork()
    if child == 0:  # pragma: no cover
        action()
        os._exit(0)
    os.waitpid(child, 0)


def fill(leaves: list[Any], value: int) -> None:
    for leaf in leaves:
        leaf[:] = value


def seen(kind: type[torch.utils.data.DataLoader[Any]], collate: Any, ends: bool) -> list[Any]:
    """Return what a script sees of its batches, while it and children write to them."""
    loader = kind(Rows(), batch_size=2, num_workers=2, collate_fn=collate)
    batches = iter(loader)
    kept = [next(batches), next(batches)]
    if ends:
        del batches, loader
        gc.collect()
    leaves = leaves_of(kept)
    values = []
    in_child(lambda: fill(leaves, 77))
    values.append([leaf.tolist() for leaf in leaves])
    fill(leaves[:1], 5)
    in_child(lambda: fill(leaves[-1:], 78))
    values.append([leaf.tolist() for leaf in leaves])
    if not ends:
        values += [[leaf.tolist() for leaf in leaves_of(batch)] for batch in batches]
    values.append([leaf.tolist() for leaf in leaves])
    return values


@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_a_child_shares_what_torch_shares_and_no_more(name: str, ends: bool) -> None:
    collate = KINDS[name]
    assert seen(DataLoader, collate, ends) == seen(torch.utils.data.DataLoader, collate, ends)


def test_a_small_tensor_is_each_processs_own() -> None:
    values = seen(DataLoader, torch.tensor, False)
    assert values[0] == [[0, 1], [2, 3]]  # torch's would be 77: they are shared, as large ones are


@pytest.mark.parametrize("name", KINDS)
def test_a_view_is_held_whatever_is_done_with_its_batch(name: str) -> None:
    loader = DataLoader(Rows(), batch_size=2, num_workers=2, collate_fn=KINDS[name])
    held, expected = [], []
    for batch in loader:
        for leaf in leaves_of(batch):
            array = leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf
            held.append(array[len(array) // 2 :])
            expected.append(held[-1].tolist())
            torch.as_tensor(leaf).share_memory_()
    del loader, batch, leaf, array
    gc.collect()
    assert [view.tolist() for view in held] == expected
