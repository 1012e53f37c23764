"""Updates of the rows that a gradient touches: to the bit what an update of all rows is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn, optim

from cputrain.runtime import fused

ROWS, WIDTH = 20_000, 16

OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "Adagrad": lambda p: optim.Adagrad(p, lr=0.1),
    "Adagrad with all": lambda p: optim.Adagrad(
        p, lr=0.1, lr_decay=0.01, initial_accumulator_value=0.1, maximize=True
    ),
    "SGD": lambda p: optim.SGD(p, lr=0.5),
    "SGD maximize": lambda p: optim.SGD(p, lr=0.5, maximize=True),
}

OTHERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "Adagrad with decay": lambda p: optim.Adagrad(p, lr=0.1, weight_decay=0.01),
    "Adagrad without eps": lambda p: optim.Adagrad(
        p, lr=0.1, eps=0.0, initial_accumulator_value=0.1
    ),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.5, momentum=0.9),
    "SGD with decay": lambda p: optim.SGD(p, lr=0.5, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.1),
}


@pytest.fixture
def applied() -> Iterator[fused.FusedOptimizers]:
    found = fused.apply(torch, True)
    assert found is not None
    yield found
    found.undo()


def trained(make: Callable[[Any], optim.Optimizer], rows: int = 64, **options: Any) -> Any:
    """Weights and states of a table and a layer after some steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH, **options), nn.Linear(WIDTH, 4))
    if "dtype" in options:
        model.to(options["dtype"])
    optimizer = make(model.parameters())
    seen = []
    for step in range(6):
        ids = torch.randint(rows, (32,)) * (ROWS // rows)
        loss = model(ids).square().mean() + (step == 3) * model[0].weight.sum()
        optimizer.zero_grad()
        loss.backward()
        gradient = model[0].weight.grad
        optimizer.step()
        assert model[0].weight.grad is gradient  # as the script's backward left it
        assert gradient.shape == (ROWS, WIDTH)
        seen.append(loss.item())
    return [*model.parameters(), seen, optimizer.state_dict()]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_left_out_would_have_stayed(
    applied: fused.FusedOptimizers, monkeypatch: pytest.MonkeyPatch, name: str, dtype: torch.dtype
) -> None:
    narrow = trained(OPTIMIZERS[name], dtype=dtype)
    assert "updates of touched rows only (1 tensor)" in applied.describe()
    monkeypatch.setattr(fused.TouchedRows, "_rows", lambda *_: None)
    assert equal(narrow, trained(OPTIMIZERS[name], dtype=dtype))


@pytest.mark.parametrize("name", OTHERS)
def test_all_rows_are_updated_where_zeros_matter(applied: fused.FusedOptimizers, name: str) -> None:
    trained(OTHERS[name])
    assert "touched rows" not in applied.describe()


def test_all_rows_are_updated_where_most_are_touched(applied: fused.FusedOptimizers) -> None:
    table = nn.Parameter(torch.ones(ROWS, WIDTH))
    optimizer = optim.SGD([table], lr=0.5)
    table.grad = torch.ones_like(table)
    optimizer.step()
    assert "touched rows" not in applied.describe()
    assert (table == 0.5).all()


def test_what_is_not_a_number_is_touched(applied: fused.FusedOptimizers) -> None:
    table = nn.Parameter(torch.ones(ROWS, WIDTH))
    optimizer = optim.SGD([table], lr=0.5)
    table.grad = torch.zeros_like(table)
    table.grad[7, 3], table.grad[9, 1] = float("nan"), float("inf")
    optimizer.step()
    assert "touched rows" in applied.describe()
    assert table[7, 3].isnan()
    assert table[9, 1].isneginf()
    assert int((table == 1).sum()) == ROWS * WIDTH - 2


def test_gradients_that_are_sparse_are_left_alone(applied: fused.FusedOptimizers) -> None:
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    optimizer = optim.SGD(table.parameters(), lr=0.5)
    before = table.weight.detach().clone()
    table(torch.arange(8)).sum().backward()
    optimizer.step()
    assert torch.equal(table.weight[:8], before[:8] - 0.5)
