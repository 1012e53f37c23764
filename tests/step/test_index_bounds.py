"""Indices beyond their table are torch's errors in compiled steps, too, and change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn, optim

from cputrain import Stack, Step
from cputrain.step.compiled_step import find_cpp_compiler

ROWS, BATCH, NUM_MODELS = 5, 8, 3

needs_compiler = pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")


class Looked(nn.Module):
    """Looks rows of a table up, by indices that a function makes of the input."""

    def __init__(self, find: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, 6)
        self.linear = nn.Linear(6, ROWS)
        self.find = find

    @property
    def rows(self) -> Tensor:
        """A row for each index of a batch."""
        return self.table.weight[0].expand(BATCH, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.find(self, x))  # type: ignore[no-any-return]


LOOKUPS: dict[str, Callable[[nn.Module, Tensor], Tensor]] = {
    "embedding": lambda self, x: self.table(x),
    "computed": lambda self, x: self.table(x * 2 - x),
    "number to index": lambda self, x: self.table((x.float() * 1.0).long()),
    "where": lambda self, x: self.table(torch.where(x == -100, 0, x)),
    "indexed": lambda self, x: self.table.weight[x],
    "selected": lambda self, x: self.table.weight.index_select(0, x),
    "gathered": lambda self, x: self.table.weight.gather(0, x[:, None].expand(-1, 6)),
    "added": lambda self, x: torch.zeros(ROWS, 6).index_add(0, x, self.rows)[0].expand(BATCH, 6),
    "scattered": lambda self, x: torch.zeros(ROWS, 6).scatter_add(
        0, x[:, None].expand(-1, 6), self.rows)[0].expand(BATCH, 6),
    "put": lambda self, x: torch.zeros(ROWS, 6).index_put(
        (x,), self.rows, accumulate=True)[0].expand(BATCH, 6),
    "shifted": lambda self, x: self.table((x[:, None] + torch.arange(1)).flatten()),
    "halves": lambda self, x: self.table(x[:, None].div(2, rounding_mode="floor")
                                         + torch.arange(2) * 2).sum(1),
    "clamped": lambda self, x: self.table(x.clamp(0, ROWS - 1)),
    "clamped too far": lambda self, x: self.table(x.clamp(0, ROWS)),
    "argmax": lambda self, x: self.table(self.table(x.clamp(0, 4))[:, :5].argmax(1)),
    "argmax too far": lambda self, x: self.table(self.table(x.clamp(0, 4)).argmax(1)),
    "sorted": lambda self, x: self.table(x.sort()[0]),
    "sorted by rows": lambda self, x: self.table.weight[x.clamp(0, 4).sort()[1] % ROWS],
}  # fmt: skip

EAGER = {"clamped too far", "argmax too far", "sorted", "sorted by rows", "halves"}
"""What may not be compiled: before the step, nothing is known of the largest index."""

IN_SHORT = {"embedding", "selected", "where", "argmax too far"}
"""What `make test` has."""

WRONG = {"next": ROWS, "far": 2**40, "negative": -1, "very negative": -ROWS - 1, "ignored": -100}


class Loss:
    """Cross entropy with the row that was looked up."""

    def __call__(self, output: Tensor, x: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, x)


def optimizer_of(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), 0.1)


def eager_step(models: list[nn.Module], batches: Tensor, targets: Tensor) -> list[float] | str:
    """Take a step of each model by torch; return losses, or what went wrong."""
    try:
        losses = [Loss()(model(x), y) for model, x, y in zip(models, batches, targets, strict=True)]
    except (IndexError, RuntimeError) as error:
        return type(error).__name__
    for model, loss in zip(models, losses, strict=True):
        optimizer = optimizer_of(model)
        model.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return [loss.item() for loss in losses]


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("use_compiler", [False, pytest.param(True, marks=needs_compiler)])
@pytest.mark.parametrize("way", ["step", "stack", "own batches"])
@pytest.mark.parametrize(
    "name",
    [name if name in IN_SHORT else pytest.param(name, marks=pytest.mark.long) for name in LOOKUPS],
)
@pytest.mark.filterwarnings("ignore:.*eager", "ignore:.*torch.jit:DeprecationWarning")
def test_an_index_out_of_bounds_is_as_in_torch(
    name: str, way: str, use_compiler: bool, num_threads: int
) -> None:
    torch.set_num_threads(num_threads)
    torch.manual_seed(0)
    models: list[nn.Module] = [
        Looked(LOOKUPS[name]) for _ in range(1 if way == "step" else NUM_MODELS)
    ]
    alone = copy.deepcopy(models)
    optimizers = list(map(optimizer_of, models))
    trained = (
        Step(models[0], Loss(), optimizers[0], use_compiler=use_compiler)
        if way == "step"
        else Stack(models, Loss(), optimizers, use_compiler=use_compiler,
                   has_own_batches=way == "own batches")
    )  # fmt: skip

    def both(batches: Tensor, targets: Tensor) -> None:
        expected = eager_step(alone, batches, targets)
        try:
            if way == "own batches":
                losses = trained(batches, targets)
            else:
                losses = trained(batches[0], targets[0])
            actual: object = losses.reshape(-1).tolist()
        except (IndexError, RuntimeError) as error:
            actual = type(error).__name__
        if isinstance(expected, str):
            assert actual == expected
        else:
            assert actual == pytest.approx(expected, rel=1e-4, nan_ok=True)
        for model, reference in zip(models, alone, strict=True):
            for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)

    def batch() -> Tensor:
        batches = torch.randint(0, ROWS, (len(models), BATCH))
        return batches if way == "own batches" else batches[:1].expand(len(models), -1)

    for _ in range(40):
        both(batch(), batch())
        trained.wait()
        if trained.num_compiled or trained.eager_reason:
            break
    assert not trained.eager_reason or name in EAGER
    for number in WRONG.values():
        for place in range(len(models) if way == "own batches" else 1):
            for which in range(2):
                pair = [batch().clone(), batch().clone()]
                rows = pair[which][place] if way == "own batches" else pair[which][:, 3]
                rows[3 if way == "own batches" else ...] = number
                both(*pair)
        both(batch(), batch())
