"""Gradients that are accumulated by `Step`, and steps with several losses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim
from torch.utils._pytree import tree_map

import cputrain.step.step as module
from cputrain import Step
from cputrain.errors import ArgumentTypeError
from cputrain.step.compiled_step import find_cpp_compiler
from tests.step.test_step import Normalized, images, mlp, rows

needs_compiler = pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def _not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have compiled steps win without a contest."""
    monkeypatch.setattr(module.Contest, "begin", lambda _: True)
    monkeypatch.setattr(module.Contest, "end", lambda _: False)


class PartlyUsed(nn.Module):
    """A layer that is frozen, one that is never called, and one that is called by odd batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 4) for _ in range(4))
        self.layers[0].requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layers[0](x) + self.layers[2](x)
        return output + self.layers[3](x) if len(x) % 2 else output


class SharedSum(nn.Module):
    """Gradients of both parameters are one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)
        self.first, self.second = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + (self.first + self.second)  # type: ignore[no-any-return]


def cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(output, targets) / 3


MODELS: dict[str, tuple[Callable[[], nn.Module], Any, Any]] = {
    "mlp": (mlp, F.mse_loss, rows),
    "dropout": (lambda: mlp(0.3), F.mse_loss, rows),
    "batch norm": (Normalized, cross_entropy, images),
    "partly used": (PartlyUsed, F.mse_loss, rows),
    "shared": (SharedSum, F.mse_loss, rows),
}

ORDERS = {
    "three batches": "aas",
    "only accumulated": "a",
    "irregular": "aasssaasas",
    "gradients removed": "aaz",
    "gradients removed before": "zas",
    "with eager backward": "eas",
}


def compare(
    name: str, order: str, *, use_compiler: bool, max_grad_norm: float | None = None
) -> Step:
    """Take steps in an order, by Step and by torch, and compare all numbers after each."""
    make, loss_fn, batches = MODELS[name]
    torch.manual_seed(0)
    models = [make()]
    models.append(copy.deepcopy(models[0]))
    optimizers = [optim.SGD(model.parameters(), 0.05, momentum=0.9) for model in models]
    step = Step(
        models[0], loss_fn, optimizers[0], max_grad_norm=max_grad_norm, use_compiler=use_compiler
    )
    generator = torch.Generator().manual_seed(1)
    for number, action in enumerate(("s" + order * 60)[:60]):
        inputs, targets = batches(generator)
        if action == "z":
            for optimizer in optimizers:
                optimizer.zero_grad()
            continue
        torch.manual_seed(number)
        expected = loss_fn(models[1](inputs), targets)
        expected.backward()
        if action == "s":
            if max_grad_norm is not None:
                nn.utils.clip_grad_norm_(models[1].parameters(), max_grad_norm)
            optimizers[1].step()
            optimizers[1].zero_grad()
        torch.manual_seed(number)
        if action == "e":
            loss = loss_fn(models[0](inputs), targets)
            loss.backward()
        else:
            loss = step(inputs, targets) if action == "s" else step.accumulate(inputs, targets)
        step.wait()
        torch.testing.assert_close(loss.detach(), expected.detach())
        assert action == "e" or not loss.requires_grad
        for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
            assert (ours.grad is None) is (theirs.grad is None)
            if ours.grad is not None:
                torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(*(model.state_dict().values() for model in models), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert step.eager_reason == ""
    return step


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", MODELS)
def test_accumulated_gradients_are_a_loops(name: str, order: str) -> None:
    step = compare(name, ORDERS[order], use_compiler=False)
    assert step.num_compiled > 15


def test_accumulated_gradients_are_clipped_together() -> None:
    assert compare("mlp", "aas", use_compiler=False, max_grad_norm=0.05).num_compiled > 30


@needs_compiler
@pytest.mark.long
@pytest.mark.parametrize("name", MODELS)
def test_accumulated_gradients_are_a_loops_compiled(name: str) -> None:
    assert compare(name, "aas", use_compiler=True).num_compiled > 30


def test_gradients_that_share_memory_are_left_to_torch() -> None:
    model = SharedSum()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.1), use_compiler=False)
    inputs, targets = torch.ones(4, 8), torch.zeros(4, 4)
    for _ in range(8):
        step(inputs, targets)
        model.first.grad = model.second.grad = torch.ones(4)
        model.layer.zero_grad()
    assert step.num_compiled <= 6
    assert step.eager_reason == ""


def tuple_of(output: Tensor, targets: Tensor) -> Any:
    return F.mse_loss(output, targets), 0.1 * output.square().mean()


def names_of(output: Tensor, targets: Tensor) -> Any:
    with torch.no_grad():
        accuracy = (output.argmax(1) == targets.argmax(1)).float()
    return {"loss": F.mse_loss(output, targets), "parts": [0.1 * output.mean(), accuracy]}


@pytest.mark.parametrize("loss", [tuple_of, names_of])
@pytest.mark.parametrize(
    "use_compiler", [False, pytest.param(True, marks=[pytest.mark.long, needs_compiler])]
)
def test_several_losses_are_summed(loss: Any, use_compiler: bool) -> None:
    torch.manual_seed(0)
    models = [mlp()]
    models.append(copy.deepcopy(models[0]))

    def total(output: Tensor, targets: Tensor) -> Tensor:
        value = loss(output, targets)
        parts = value if isinstance(value, tuple) else [value["loss"], value["parts"][0]]
        return parts[0] + parts[1]  # type: ignore[no-any-return]

    steps = [
        Step(model, each, optim.Adam(model.parameters()), use_compiler=use_compiler)
        for model, each in zip(models, (loss, total), strict=True)
    ]
    for _ in range(20):
        batch = torch.randn(16, 8), torch.randn(16, 4)
        expected = loss(models[0](batch[0]), batch[1])
        values, _ = steps[0](*batch), steps[1](*batch)
        torch.testing.assert_close(values, tree_map(Tensor.detach, expected))
        for step in steps:
            step.wait()
    assert steps[0].num_compiled > 10
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_a_loss_that_is_no_tensor_is_named() -> None:
    model = mlp()
    step = Step(model, lambda output, _: output.sum().item(), optim.SGD(model.parameters(), 0.1))
    with pytest.raises(ArgumentTypeError, match=r"loss must return a tensor, .* found float"):
        step(torch.ones(4, 8), None)
