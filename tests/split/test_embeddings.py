"""Gradients of tables in shards: rows that are read, and sums like those of the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812  (as torch's own documentation has it)
from torch import Tensor, nn

from cputrain import Split
from cputrain.split.execution import replica_group

ROWS, WIDTH = 300, 5


class Table(nn.Module):
    """A table, and what is made of its rows."""

    def __init__(self, read: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, WIDTH))
        self.out = nn.Linear(WIDTH, 3)
        self.read = read

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.read(words, self.weight).tanh())


def tied(words: Tensor, weight: Tensor) -> Tensor:
    hidden = F.embedding(words, weight).mean(1)
    return hidden + F.linear(hidden, weight).softmax(1)[:, :WIDTH]


READS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "words": lambda words, weight: F.embedding(words, weight).mean(1),
    "twice": lambda words, weight: (
        F.embedding(words, weight) + F.embedding(words.flip(1), weight)
    ).sum(1),
    "padding": lambda words, weight: F.embedding(words, weight, padding_idx=3).sum(1),
    "scaled": lambda words, weight: F.embedding(words, weight * 2).sum(1),
    "tied": tied,
    "sum": lambda words, weight: F.embedding_bag(words, weight, mode="sum"),
    "mean": lambda words, weight: F.embedding_bag(words, weight),
    "max": lambda words, weight: F.embedding_bag(words, weight, mode="max"),
    "weighted": lambda words, weight: F.embedding_bag(
        words, weight, mode="sum", per_sample_weights=(words % 3 + 1).to(weight.dtype)
    ),
    "padded bag": lambda words, weight: F.embedding_bag(words, weight, mode="mean", padding_idx=3),
    "operator": lambda words, weight: torch.embedding(weight, words).mean(1),
}


def gradients(model: nn.Module, words: Tensor, times: int = 1) -> list[Tensor]:
    for _ in range(times):
        model(words).square().sum().backward()
    result = []
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.layout is torch.strided
        result.append(parameter.grad)
        parameter.grad = None
    return result


@pytest.mark.parametrize("options", [{"replicas": 2}, {"reproducible": 5}], ids=str)
@pytest.mark.parametrize("read", READS)
def test_gradients_are_those_of_the_whole_batch(
    read: str, options: dict[str, Any], exactly: None
) -> None:
    model = Table(READS[read])
    words = torch.randint(ROWS, (20, 4))
    words[::3, 0] = 3
    expected = gradients(model, words, times=2)
    for result, wanted in zip(
        gradients(Split(model, **options), words, times=2), expected, strict=True
    ):
        torch.testing.assert_close(result, wanted)


@pytest.mark.parametrize("read", ["words", "twice", "sum", "mean", "weighted", "padding"])
def test_no_shard_has_a_gradient_as_large_as_the_table(
    read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.layout] = []
    original = replica_group.dense_sum

    def dense_sum(parts: list[Tensor | None]) -> Tensor | None:
        seen.extend(part.layout for part in parts if part is not None)
        return original(parts)

    monkeypatch.setattr(replica_group, "dense_sum", dense_sum)
    model = Split(Table(READS[read]), replicas=2)
    gradients(model, torch.randint(ROWS, (20, 4)))
    assert set(seen) == {torch.sparse_coo}
    seen.clear()
    gradients(model, torch.randint(ROWS, (200, 4)))  # more words than rows
    assert not seen


def test_a_table_that_the_script_has_sparse_stays_so() -> None:
    model = nn.Sequential(nn.Embedding(ROWS, WIDTH, sparse=True), nn.Flatten(), nn.Linear(20, 2))
    Split(model, replicas=2)(torch.randint(ROWS, (20, 4))).sum().backward()
    table = model[0].weight
    assert isinstance(table, Tensor)
    assert table.grad is not None
    assert table.grad.layout is torch.sparse_coo


def test_hooks_of_the_script_see_dense_gradients() -> None:
    model = Table(READS["words"])
    seen: list[Tensor] = []
    model.weight.register_hook(lambda grad: seen.append(grad))
    words = torch.randint(ROWS, (20, 4))
    model(words).sum().backward()
    split = Split(model, replicas=2)
    split(words).sum().backward()
    assert seen[-1].layout is torch.strided
    torch.testing.assert_close(seen[-1], seen[0])
