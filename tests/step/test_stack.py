"""Stacked models take the steps that each would take alone."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from cputrain import Stack
from cputrain.errors import ArgumentTypeError, UsageError
from cputrain.step.compiled_step import find_cpp_compiler

NUM_MODELS, NUM_STEPS = 3, 20

needs_compiler = pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 4)), nn.Conv1d(2, 4, 3, bias=False), nn.BatchNorm1d(4), nn.ReLU(),
        nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip


def frozen() -> nn.Module:
    model = mlp()
    next(model.parameters()).requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp, "convolutional": convolutional, "frozen": frozen
}  # fmt: skip

OPTIMIZERS: dict[str, Callable[[Any, int], optim.Optimizer]] = {
    "adam": lambda parameters, index: optim.Adam(parameters, 1e-3 * (index + 1)),
    "decay": lambda parameters, index: optim.AdamW(parameters, weight_decay=0.1 * index),
    "sgd": lambda parameters, index: optim.SGD(parameters, 0.1, momentum=0.3 * index),
    "rmsprop": lambda parameters, _: optim.RMSprop(parameters, 1e-3),
    "several": lambda parameters, index: (optim.Adam if index else optim.SGD)(parameters, 1e-2),
}


class Population:
    """Models with their optimizers, and copies that are trained alone."""

    def __init__(self, model: str, optimizer: str, **options: Any) -> None:
        torch.manual_seed(1)
        self.models = [MODELS[model]() for _ in range(NUM_MODELS)]
        self.alone = copy.deepcopy(self.models)
        make = OPTIMIZERS[optimizer]
        self.optimizers = [make(each.parameters(), i) for i, each in enumerate(self.models)]
        self.optimizers_alone = [make(each.parameters(), i) for i, each in enumerate(self.alone)]
        self.has_own = options.get("has_own_batches", False)
        self.max_grad_norm = options.get("max_grad_norm")
        options = {"use_compiler": False, **options}
        self.stack = Stack(self.models, nn.CrossEntropyLoss(), self.optimizers, **options)

    def batch(self, size: int = 12) -> tuple[Tensor, Tensor]:
        lead = (NUM_MODELS,) if self.has_own else ()
        return torch.randn(*lead, size, 8), torch.randint(4, (*lead, size))

    def step_alone(self, inputs: Tensor, targets: Tensor) -> Tensor:
        losses = []
        for index, (model, optimizer) in enumerate(
            zip(self.alone, self.optimizers_alone, strict=True)
        ):
            batch = (inputs[index], targets[index]) if self.has_own else (inputs, targets)
            loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
            optimizer.zero_grad()
            loss.backward()
            if self.max_grad_norm is not None:
                nn.utils.clip_grad_norm_(model.parameters(), self.max_grad_norm)
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    def step(self, size: int = 12) -> None:
        batch = self.batch(size)
        losses = self.stack(*batch)
        self.stack.wait()
        torch.testing.assert_close(losses, self.step_alone(*batch), rtol=1e-5, atol=1e-6)

    def assert_same(self) -> None:
        for model, alone in zip(self.models, self.alone, strict=True):
            for name, tensor in model.state_dict().items():
                torch.testing.assert_close(
                    tensor, alone.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name
                )
            assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("has_own_batches", [False, True])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_steps_are_those_of_models_alone(model: str, optimizer: str, has_own_batches: bool) -> None:
    population = Population(model, optimizer, has_own_batches=has_own_batches)
    for _ in range(NUM_STEPS):
        population.step()
    population.assert_same()
    assert population.stack.num_compiled > NUM_STEPS // 2, population.stack.eager_reason


@needs_compiler
@pytest.mark.parametrize("has_own_batches", [False, True])
@pytest.mark.parametrize("model", ["mlp", "convolutional"])
def test_compiled_steps_are_those_of_models_alone(model: str, has_own_batches: bool) -> None:
    population = Population(model, "adam", has_own_batches=has_own_batches, use_compiler=True)
    for _ in range(NUM_STEPS):
        population.step()
    population.assert_same()
    assert population.stack.num_compiled > NUM_STEPS // 2, population.stack.eager_reason


def test_gradients_are_clipped_for_each_model() -> None:
    population = Population("mlp", "sgd", max_grad_norm=0.05)
    for _ in range(NUM_STEPS):
        population.step()
    population.assert_same()
    assert population.stack.num_compiled


def test_batches_of_another_size_and_schedules() -> None:
    population = Population("mlp", "adam")
    schedulers = [
        optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        for optimizer in (*population.optimizers, *population.optimizers_alone)
    ]
    for step in range(2 * NUM_STEPS):
        population.step(size=5 if step % 4 == 3 else 12)
        for scheduler in schedulers:
            scheduler.step()
    population.assert_same()
    assert population.stack.num_compiled > NUM_STEPS


def test_checkpoints_are_those_of_models_alone() -> None:
    population = Population("convolutional", "adam")
    for step in range(2 * NUM_STEPS):
        population.step()
        if step in {8, 20}:
            for models, optimizers in (
                (population.models, population.optimizers),
                (population.alone, population.optimizers_alone),
            ):
                file = io.BytesIO()
                torch.save([models[0].state_dict(), optimizers[0].state_dict()], file)
                file.seek(0)
                weights, states = torch.load(file)
                models[1].load_state_dict(weights)
                optimizers[1].load_state_dict(states)
        if step == 30:
            for models in (population.models, population.alone):
                models[2][0] = nn.Unflatten(1, (2, 4))  # type: ignore[index]
                models[2].double().float()
    population.assert_same()
    assert population.stack.num_compiled > NUM_STEPS


def test_what_cannot_be_stacked_is_eager() -> None:
    models = [nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5)) for _ in range(2)]
    optimizers = [optim.SGD(model.parameters(), 0.1) for model in models]
    stack = Stack(models, nn.MSELoss(), optimizers)
    stack(torch.ones(3, 8), torch.zeros(3, 4))
    with pytest.warns(UserWarning, match="Stack runs eagerly"):
        stack(torch.ones(3, 8), torch.zeros(3, 4))
    assert "random" in stack.eager_reason


def test_hooks_of_optimizers_are_called() -> None:
    population = Population("mlp", "adam")
    calls: list[int] = []
    population.optimizers[1].register_step_post_hook(lambda *_: calls.append(1))
    for _ in range(NUM_STEPS):
        population.step()
    assert len(calls) == NUM_STEPS


@pytest.mark.parametrize(
    ("models", "num_optimizers", "text"),
    [
        ([], 0, "models must not be empty"),
        ([mlp(), mlp()], 1, "one optimizer for each model"),
        ([mlp(), nn.Linear(8, 4)], 2, "one architecture"),
        ([mlp()] * 2, 2, "parameters of their own"),
        ([mlp(), None], 2, "model must be"),
    ],
)
def test_bad_arguments_are_named(models: list[Any], num_optimizers: int, text: str) -> None:
    optimizers = [optim.Adam(mlp().parameters()) for _ in range(num_optimizers)]
    with pytest.raises((UsageError, ArgumentTypeError), match=text):
        Stack(models, nn.MSELoss(), optimizers)


def test_own_batches_are_as_many_as_models() -> None:
    population = Population("mlp", "adam", has_own_batches=True)
    with pytest.raises(UsageError, match="3 batches along the first dimension"):
        population.stack(torch.ones(2, 4, 8), torch.zeros(3, 4, dtype=torch.long))
