"""Large tables of which a gradient touches few rows: updated as under plain python."""

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
    "Adagrad with decay": lambda p: optim.Adagrad(p, lr=0.1, weight_decay=0.01),
    "Adagrad without eps": lambda p: optim.Adagrad(
        p, lr=0.1, eps=0.0, initial_accumulator_value=0.1
    ),
    "SGD": lambda p: optim.SGD(p, lr=0.5),
    "SGD maximize": lambda p: optim.SGD(p, lr=0.5, maximize=True),
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.5, momentum=0.9),
    "SGD with decay": lambda p: optim.SGD(p, lr=0.5, weight_decay=0.01),
    "Adam": lambda p: optim.Adam(p, lr=0.01),
}


@pytest.fixture
def applied() -> Iterator[fused.FusedOptimizers]:
    patches = fused.FusedOptimizers(torch)
    yield patches
    patches.undo()


def train(make: Callable[[Any], optim.Optimizer], dtype: torch.dtype) -> Any:
    """Return weights, losses and states of a table and layers after some steps."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(10))  # SGD is fused from 20 on
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH), layers).to(dtype)
    optimizer = make(model.parameters())
    losses = []
    for step in range(6):
        ids = torch.randint(64, (32,)) * (ROWS // 64)
        rows = model[0](ids)
        loss = sum(layer(rows).square().mean() for layer in layers)
        loss = loss + (step == 3) * model[0].weight.sum()
        optimizer.zero_grad()
        loss.backward()
        gradient = model[0].weight.grad
        optimizer.step()
        assert model[0].weight.grad is gradient  # as the script's backward left it
        assert gradient.shape == (ROWS, WIDTH)
        losses.append(loss.item())
    versions = [parameter._version for parameter in model.parameters()]
    return [*model.parameters(), losses, optimizer.state_dict(), versions]


def equal(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, torch.Tensor):
        return torch.allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    if isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(equal(ours[key], theirs[key]) for key in theirs)
    if isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(equal, ours, theirs))
    if isinstance(theirs, float):
        return bool(ours == pytest.approx(theirs, rel=1e-5))
    return bool(ours == theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_tables_train_as_under_plain_python(
    applied: fused.FusedOptimizers, name: str, dtype: torch.dtype
) -> None:
    ours = train(OPTIMIZERS[name], dtype)
    assert ("(21 tensors)" in applied.describe()) == (name != "SGD")
    applied.undo()
    assert equal(ours, train(OPTIMIZERS[name], dtype))


def test_rows_without_a_gradient_stay_to_the_bit(applied: fused.FusedOptimizers) -> None:
    table = nn.Parameter(torch.randn(ROWS, WIDTH))
    before = table.detach().clone()
    optimizer = optim.Adagrad([table], lr=0.1)
    table.grad = torch.zeros_like(table)
    table.grad[7] = 1.0
    optimizer.step()
    assert applied.describe() == "fused Adagrad (1 tensor)"
    changed = (table != before).any(1).nonzero().squeeze(1)
    assert changed.tolist() == [7]


def test_what_is_not_a_number_stays_where_it_is(applied: fused.FusedOptimizers) -> None:
    table = nn.Parameter(torch.ones(ROWS, WIDTH))
    optimizer = optim.Adagrad([table], lr=0.5)
    table.grad = torch.zeros_like(table)
    table.grad[7, 3], table.grad[9, 1] = float("nan"), float("inf")
    optimizer.step()
    assert applied.describe() == "fused Adagrad (1 tensor)"
    assert table[7, 3].isnan()
    assert table[9, 1].isnan()  # infinity divided by itself
    assert int((table == 1).sum()) == ROWS * WIDTH - 2


def test_gradients_that_are_sparse_are_left_alone(applied: fused.FusedOptimizers) -> None:
    table = nn.Embedding(ROWS, WIDTH, sparse=True)
    optimizer = optim.SGD(table.parameters(), lr=0.5)
    before = table.weight.detach().clone()
    table(torch.arange(8)).sum().backward()
    optimizer.step()
    assert torch.equal(table.weight[:8], before[:8] - 0.5)
    assert applied.describe() == ""
