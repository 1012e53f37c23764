"""A step is what the four lines of an eager loop are, or runs as these lines, by name."""

from __future__ import annotations

import copy
import os
import pickle
import random
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim
from torch.optim import lr_scheduler

import cputrain.step.step as module
from cputrain import Step
from cputrain.errors import ArgumentTypeError, UsageError
from cputrain.step.compiled_step import find_cpp_compiler
from tests.compilers import hide_compiler
from tests.selected import some

NUM_STEPS = 30

needs_compiler = pytest.mark.skipif(find_cpp_compiler() is None, reason="there is no C++ compiler")


@pytest.fixture(autouse=True)
def _not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have compiled steps win without a contest."""
    monkeypatch.setattr(module.Contest, "begin", lambda _: True)
    monkeypatch.setattr(module.Contest, "end", lambda _: False)


def test_slower_steps_are_eager_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    step = Step(model, nn.MSELoss(), optim.SGD(model.parameters(), 0.1), use_compiler=False)
    for _ in range(5):
        step(torch.ones(4, 8), torch.zeros(4, 4))
    assert step.num_compiled
    monkeypatch.setattr(module.Contest, "end", lambda _: True)
    with pytest.warns(UserWarning, match="no faster compiled"):
        step(torch.ones(4, 8), torch.zeros(4, 4))
    num_compiled = step.num_compiled
    step(torch.ones(4, 8), torch.zeros(4, 4))
    assert step.num_compiled == num_compiled


def mlp(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(nn.Linear(8, 32), nn.Dropout(dropout), nn.ReLU(), nn.Linear(32, 4))


class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module] = nn.GRU) -> None:
        super().__init__()
        self.cell, self.head = kind(5, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x)[0][:, -1])  # type: ignore[no-any-return]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embedding(x)).flatten(0, 1)  # type: ignore[no-any-return]


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 4), nn.Linear(3, 4)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.first(first) + self.second(second)  # type: ignore[no-any-return]


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        return output if x.sum() > 0 else -output


class Counts(Branches):
    num_calls = 0

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return self.layer(x) * self.num_calls  # type: ignore[no-any-return]


class Reassigns(Branches):
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.layer(x)
        self.mean = 0.9 * self.mean + 0.1 * output.detach().mean(0)
        return output - self.mean


def rows(generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(16, 8, generator=generator), torch.randn(16, 4, generator=generator)


def classes(generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(16, 8, generator=generator), torch.randint(4, (16,), generator=generator)


def images(generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(6, 3, 9, 9, generator=generator), torch.randint(4, (6,), generator=generator)


def sequences(generator: torch.Generator) -> tuple[Any, ...]:
    return torch.randn(4, 7, 5, generator=generator), torch.randint(4, (4,), generator=generator)


def tokens(generator: torch.Generator) -> tuple[Any, ...]:
    return (
        torch.randint(20, (3, 6), generator=generator),
        torch.randint(20, (18,), generator=generator),
    )


def pairs(generator: torch.Generator) -> tuple[Any, ...]:
    first, second = torch.randn(5, 8, generator=generator), torch.randn(5, 3, generator=generator)
    return (first, second), torch.randn(5, 4, generator=generator)


def named(generator: torch.Generator) -> tuple[Any, ...]:
    (first, second), targets = pairs(generator)
    return {"second": second, "first": first}, targets


def doubles(generator: torch.Generator) -> tuple[Any, ...]:
    return tuple(tensor.double() for tensor in rows(generator))


Make = Callable[[Any], optim.Optimizer]


def two_groups(parameters: Any) -> optim.Optimizer:
    first, *rest = parameters
    return optim.Adam([{"params": [first], "lr": 0.01}, {"params": rest, "weight_decay": 0.1}])


class Case(NamedTuple):
    """A model with its loss, optimizer and batches."""

    model: Callable[[], nn.Module] = mlp
    loss: Callable[..., Tensor] = F.mse_loss
    optimizer: Make = optim.Adam
    batches: Callable[[torch.Generator], tuple[Any, ...]] = rows
    max_grad_norm: float | None = None
    within: float = 1e-6
    autocast: bool = False


WEIGHTS = torch.tensor([1.0, 2.0, 3.0, 4.0])

CASES = {
    "Adam": Case(),
    "AdamW": Case(optimizer=lambda p: optim.AdamW(p, amsgrad=True)),
    "SGD": Case(optimizer=lambda p: optim.SGD(p, 0.1)),
    "momentum": Case(
        optimizer=lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)
    ),
    "RMSprop": Case(optimizer=lambda p: optim.RMSprop(p, momentum=0.5, centered=True)),
    "Adagrad": Case(optimizer=lambda p: optim.Adagrad(p, 0.05, lr_decay=0.1)),
    "NAdam": Case(optimizer=optim.NAdam),
    "Adadelta": Case(optimizer=optim.Adadelta),
    "Adamax": Case(optimizer=optim.Adamax),
    "Rprop": Case(optimizer=optim.Rprop),
    "foreach": Case(optimizer=lambda p: optim.Adam(p, foreach=True)),
    "fused": Case(optimizer=lambda p: optim.Adam(p, fused=True)),
    "maximize": Case(optimizer=lambda p: optim.Adam(p, maximize=True)),
    "rate that is a tensor": Case(optimizer=lambda p: optim.Adam(p, lr=torch.tensor(1e-3))),
    "two groups": Case(optimizer=two_groups),
    "clipping": Case(max_grad_norm=0.1),
    "dropout": Case(model=lambda: mlp(0.3)),
    "batch norm": Case(Normalized, F.cross_entropy, lambda p: optim.SGD(p, 0.1), images),
    "evaluated batch norm": Case(
        lambda: Normalized().eval(), F.cross_entropy, lambda p: optim.SGD(p, 0.1), images
    ),
    "GRU": Case(Recurrent, F.cross_entropy, batches=sequences),
    "LSTM": Case(lambda: Recurrent(nn.LSTM), F.cross_entropy, batches=sequences),
    "tied": Case(Tied, F.cross_entropy, batches=tokens),
    "float64": Case(model=lambda: mlp().double(), batches=doubles, within=1e-12),
    "tuple": Case(TwoInputs, batches=pairs),
    "dictionary": Case(TwoInputs, batches=named),
    "class weights": Case(
        loss=nn.CrossEntropyLoss(weight=WEIGHTS, label_smoothing=0.1), batches=classes
    ),
    "bf16": Case(autocast=True, within=1e-5),
}

EAGER = {
    "branch": (Case(Branches), "depends on numbers in tensors"),
    "counter": (Case(Counts), "num_calls changes from step to step"),
    "new buffer": (Case(Reassigns), "sets an attribute"),
    "tensor of a closure": (
        Case(loss=lambda o, t: F.cross_entropy(o, t, weight=WEIGHTS), batches=classes),
        "neither parameter, buffer, attribute nor argument",
    ),
}


FACTOR = 1.0


class Settings:
    """Values that a loss reads."""

    def __init__(self) -> None:
        self.factors, self.power = [1.0, 2.0], {"power": 2}


class Scaled(Branches):
    """A model that reads values of all kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.settings, self.scales, self.factor = Settings(), (1.0, [2.0]), float("nan")

    def scale(self) -> float:
        return FACTOR * self.settings.factors[0] * self.scales[1][0]  # type: ignore[index]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale()  # type: ignore[no-any-return]


def set_global(model: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "FACTOR", 3.0)


def set_attribute(model: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    model.factor = 3.0


def set_nested(model: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    model.settings.factors[0] = 3.0


def set_in_tuple(model: Scaled, monkeypatch: pytest.MonkeyPatch) -> None:
    model.scales[1][0] = 3.0  # type: ignore[index]


def test_values_that_the_loss_reads_are_seen() -> None:
    weight, settings, results = 1.0, Settings(), []

    def loss(output: Tensor, targets: Tensor) -> Tensor:
        return weight * settings.factors[1] * (output - targets).abs().pow(2).mean()

    model = mlp()
    step = Step(model, loss, optim.SGD(model.parameters(), 0.0), use_compiler=False)
    for number in range(24):
        if number == 8:
            weight = 5.0
        if number == 16:
            settings.factors[1] = 7.0
        results.append(step(*BATCH).item())
    assert results[8] == pytest.approx(5 * results[7])
    assert results[16] == pytest.approx(3.5 * results[15])
    assert step.num_compiled > 12


@pytest.mark.parametrize("change", [set_global, set_attribute, set_nested, set_in_tuple])
def test_values_that_the_model_reads_are_seen(
    change: Callable[[Scaled, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Scaled()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.0), use_compiler=False)
    for _ in range(5):
        step(*BATCH)
    assert step.num_compiled == 2
    change(model, monkeypatch)
    assert step(*BATCH).item() == pytest.approx(F.mse_loss(model(BATCH[0]), BATCH[1]).item())
    assert step.eager_reason == ""


def test_a_value_that_becomes_a_tensor_is_seen() -> None:
    model = Scaled()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.0), use_compiler=False)
    for _ in range(5):
        step(*BATCH)
    model.factor = torch.ones(2)  # type: ignore[assignment]
    model.settings.factors[0] = torch.ones(2)[0]  # type: ignore[call-overload]
    assert step(*BATCH).isfinite()


class Masked(Branches):
    def forward(self, x: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        output: Tensor = self.layer(torch.ones(16, 8) if x is None else x)
        return output if scale is None else output * scale


def test_the_name_of_an_argument_is_seen() -> None:
    model = Masked()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.0), use_compiler=False)
    inputs, targets = torch.full((16, 8), 3.0), BATCH[1]
    for _ in range(5):
        step({"x": inputs}, targets)
    assert step.num_compiled == 2
    expected = F.mse_loss(model(scale=inputs[:, :4]), targets)
    assert step({"scale": inputs[:, :4]}, targets).item() == pytest.approx(expected.item())
    assert step(inputs, targets).item() == pytest.approx(F.mse_loss(model(inputs), targets).item())


def test_targets_in_a_tuple_are_not_those_without() -> None:
    def loss(output: Tensor, targets: Any) -> Tensor:
        return F.mse_loss(output, targets) if isinstance(targets, Tensor) else output.sum()

    model = mlp()
    step = Step(model, loss, optim.SGD(model.parameters(), 0.0), use_compiler=False)
    for _ in range(5):
        step(BATCH[0], (BATCH[1],))
    assert step.num_compiled == 2
    assert step(*BATCH).item() == pytest.approx(F.mse_loss(model(BATCH[0]), BATCH[1]).item())


def test_arguments_that_are_none_are_compiled() -> None:
    model = Masked()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.0), use_compiler=False)
    for _ in range(5):
        step((BATCH[0], None), BATCH[1])
    assert step.num_compiled == 2


class Draws(Branches):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * random.random()  # type: ignore[no-any-return]


def test_numbers_of_python_are_drawn_in_each_step() -> None:
    model = Draws()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.0), use_compiler=False)
    random.seed(0)
    expected = [random.random() for _ in range(4)][3]
    random.seed(0)
    step(*BATCH)
    step(*BATCH)
    with pytest.warns(UserWarning, match="draws random numbers of Python"):
        step(*BATCH)
    assert random.random() == expected


class Trained(NamedTuple):
    """Losses and tensors after training by Step, and by a loop."""

    step: Step
    losses: list[list[float]]
    tensors: list[list[Tensor]]


def tensors_after(model: nn.Module, optimizer: optim.Optimizer) -> list[Tensor]:
    states = [value for state in optimizer.state.values() for value in state.values()]
    values = [*model.state_dict().values(), *states]
    return [value.detach().clone() for value in values if isinstance(value, Tensor)]


def train(case: Case, *, use_compiler: bool) -> Trained:
    """Train by Step and by a loop, with the same batches, random numbers and scheduler."""
    torch.manual_seed(0)
    models = [case.model()]
    models.append(copy.deepcopy(models[0]))
    optimizers = [case.optimizer(model.parameters()) for model in models]
    schedulers = [lr_scheduler.CosineAnnealingLR(optimizer, 40) for optimizer in optimizers]
    step = Step(
        models[0],
        case.loss,
        optimizers[0],
        max_grad_norm=case.max_grad_norm,
        use_compiler=use_compiler,
    )

    def loop(inputs: Any, targets: Any) -> Tensor:
        model, optimizer = models[1], optimizers[1]
        if isinstance(inputs, dict):
            output = model(**inputs)
        else:
            output = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        loss = case.loss(output, targets)
        loss.backward()  # type: ignore[no-untyped-call]
        if case.max_grad_norm is not None:
            norm = nn.utils.clip_grad_norm_(model.parameters(), case.max_grad_norm)
            assert step.grad_norm is not None
            assert torch.allclose(norm, step.grad_norm, 1e-5)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    losses: list[list[float]] = [[], []]
    generator = torch.Generator().manual_seed(1)
    for number in range(NUM_STEPS):
        batch = case.batches(generator)
        random_states = []
        for index, function in enumerate((step, loop)):
            torch.manual_seed(number)
            with torch.autocast("cpu", torch.bfloat16, enabled=case.autocast):
                losses[index].append(function(*batch).item())
            random_states.append(torch.get_rng_state())
        assert torch.equal(*random_states)
        for scheduler in schedulers:
            scheduler.step()
        step.wait()
    tensors = [
        tensors_after(model, optimizer) for model, optimizer in zip(models, optimizers, strict=True)
    ]
    return Trained(step, losses, tensors)


def assert_equal(trained: Trained, within: float) -> None:
    ours, theirs = trained.losses
    assert ours == pytest.approx(theirs, rel=10 * within)
    for computed, expected in zip(*trained.tensors, strict=True):
        scale = expected.double().abs().max().clamp(min=1e-30)
        assert (computed.double() - expected.double()).abs().max() <= within * scale


@pytest.mark.parametrize("name", some(CASES, 8))
def test_a_replayed_step_is_a_loops(name: str) -> None:
    trained = train(CASES[name], use_compiler=False)
    assert trained.step.eager_reason == ""
    assert trained.step.num_compiled == NUM_STEPS - 3
    assert_equal(trained, CASES[name].within)


@needs_compiler
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name != "Adam")) for name in CASES],
)
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_compiled_step_is_a_loops(name: str) -> None:
    trained = train(CASES[name], use_compiler=True)
    assert trained.step.eager_reason == ""
    assert trained.step.num_compiled == NUM_STEPS - 4
    assert_equal(trained, CASES[name].within)


@pytest.mark.parametrize("name", EAGER)
def test_what_cannot_be_compiled_runs_eagerly_by_name(name: str) -> None:
    case, reason = EAGER[name]
    with pytest.warns(UserWarning, match="Step runs eagerly"):
        trained = train(case, use_compiler=False)
    assert reason in trained.step.eager_reason
    assert trained.step.num_compiled == 0
    assert_equal(trained, 0.0)


def trained_step(model: nn.Module | None = None, **options: Any) -> tuple[Step, nn.Module, Any]:
    """Return a step that is compiled, its model and its optimizer."""
    torch.manual_seed(0)
    model = model or mlp()
    optimizer = optim.Adam(model.parameters(), **options)
    step = Step(model, F.mse_loss, optimizer, use_compiler=False)
    for _ in range(4):
        step(*BATCH)
    assert step.num_compiled == 1
    return step, model, optimizer


BATCH = torch.ones(16, 8), torch.zeros(16, 4)


class TestAfterwards:
    """What a script does between steps."""

    def test_checkpoints_are_loaded(self) -> None:
        step, model, optimizer = trained_step()
        saved = pickle.dumps((model.state_dict(), optimizer.state_dict()))
        expected = [step(*BATCH).item() for _ in range(5)]
        weights, states = pickle.loads(saved)
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)
        num_before = step.num_compiled
        assert [step(*BATCH).item() for _ in range(5)] == pytest.approx(expected, rel=1e-6)
        assert step.num_compiled == num_before + 5

    def test_a_gradient_that_is_there_is_added(self) -> None:
        _, model, _ = trained_step()
        other, twin = copy.deepcopy(model), copy.deepcopy(model)
        steps = [
            Step(net, F.mse_loss, optim.SGD(net.parameters(), 0.1), use_compiler=False)
            for net in (other, twin)
        ]
        for each in steps:
            for _ in range(4):
                each(*BATCH)
        for net in (other, twin):
            F.mse_loss(net(BATCH[0] * 2), BATCH[1]).backward()  # type: ignore[no-untyped-call]
        steps[0](*BATCH)
        F.mse_loss(twin(BATCH[0]), BATCH[1]).backward()  # type: ignore[no-untyped-call]
        optim.SGD(twin.parameters(), 0.1).step()
        for ours, theirs in zip(other.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(ours, theirs, 1e-5, 1e-7)

    def test_frozen_parameters_stay(self) -> None:
        step, model, _ = trained_step()
        first: Any = model.get_submodule("0")
        first.weight.requires_grad_(False)
        before = first.weight.clone()
        for _ in range(5):
            step(*BATCH)
        assert torch.equal(first.weight, before)
        assert step.eager_reason == ""
        assert step.num_compiled > 1

    def test_a_last_batch_of_another_size_is_a_loops(self) -> None:
        step, _, _ = trained_step()
        num_before = step.num_compiled
        assert step(BATCH[0][:3], BATCH[1][:3]).isfinite()
        step(*BATCH)
        assert step.num_compiled == num_before + 1

    def test_evaluation_between_steps_is_seen(self) -> None:
        step, model, _ = trained_step(mlp(0.5))
        model.eval()
        losses = {step(*BATCH).item() for _ in range(2)}
        model.train()
        step(*BATCH)
        assert len(losses) == 2
        assert step.eager_reason == ""

    @pytest.mark.parametrize("place", ["module", "parameter", "optimizer"])
    def test_hooks_are_called(self, place: str) -> None:
        step, model, optimizer = trained_step()
        calls: list[int] = []

        def hook(*_: object) -> None:
            calls.append(1)

        if place == "module":
            model.register_forward_hook(hook)
        elif place == "parameter":
            next(model.parameters()).register_hook(hook)
        else:
            optimizer.register_step_post_hook(hook)
        with pytest.warns(UserWarning, match="hook"):
            step(*BATCH)
        step(*BATCH)
        assert len(calls) == 2

    def test_options_of_the_optimizer_are_seen(self) -> None:
        step, model, optimizer = trained_step(weight_decay=0.0)
        twin = copy.deepcopy(model)
        other = optim.Adam(twin.parameters())
        other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        for each in (optimizer, other):
            each.param_groups[0]["weight_decay"] = 0.5
        for _ in range(6):
            step(*BATCH)
            F.mse_loss(twin(BATCH[0]), BATCH[1]).backward()  # type: ignore[no-untyped-call]
            other.step()
            other.zero_grad()
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            assert torch.allclose(ours, theirs, 1e-5, 1e-7)

    def test_an_option_that_changes_in_each_step_is_named(self) -> None:
        step, _, optimizer = trained_step()

        def change() -> None:
            for number in range(12):
                optimizer.param_groups[0]["weight_decay"] = number / 100
                step(*BATCH)

        with pytest.warns(UserWarning, match="the option weight_decay of the optimizer"):
            change()

    def test_an_error_of_the_model_is_the_models(self) -> None:
        step, _, _ = trained_step()
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            step(torch.ones(16, 9), BATCH[1])
        assert step(*BATCH).isfinite()

    def test_tensors_of_an_older_graph_are_missed(self) -> None:
        step, model, _ = trained_step()
        loss = F.mse_loss(model(BATCH[0]), BATCH[1])
        step(*BATCH)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()  # type: ignore[no-untyped-call]
        model.zero_grad()
        assert step(*BATCH).isfinite()

    def test_a_model_in_another_dtype_is_seen(self) -> None:
        step, model, optimizer = trained_step()
        model.double()
        for state in optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = state[name].double()
        for _ in range(5):
            assert step(BATCH[0].double(), BATCH[1].double()).dtype is torch.float64
        assert step.eager_reason == ""

    def test_memory_that_a_script_gives_is_used(self) -> None:
        step, model, _ = trained_step()
        expected = copy.deepcopy(model)
        first: Any = model.get_submodule("0")
        first.weight.data = first.weight.data * 0
        step(*BATCH)
        assert first.weight.abs().max() < 0.01
        first.weight.data = expected.get_submodule("0").weight.data.t().contiguous().t()  # type: ignore[union-attr, operator]
        assert step(*BATCH).isfinite()

    def test_inputs_that_need_gradients_get_them(self) -> None:
        step, _, _ = trained_step()
        inputs = BATCH[0].clone().requires_grad_()
        for _ in range(4):
            step(inputs, BATCH[1])
        assert inputs.grad is not None

    def test_anomalies_are_detected(self) -> None:
        step, _, _ = trained_step()
        num_before = step.num_compiled
        with torch.autograd.set_detect_anomaly(True):
            step(*BATCH)
        assert step.num_compiled == num_before

    def test_no_gradients_are_left(self) -> None:
        step, model, _ = trained_step()
        step(*BATCH)
        assert all(parameter.grad is None for parameter in model.parameters())

    def test_models_train_in_threads(self) -> None:
        steps = [trained_step()[0] for _ in range(3)]
        losses: list[list[float]] = [[] for _ in steps]

        def work(index: int) -> None:
            losses[index] += [steps[index](*BATCH).item() for _ in range(50)]

        threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert losses[0] == losses[1] == losses[2]


def test_without_a_compiler_operators_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_compiler(monkeypatch)
    model = mlp()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.1))
    losses = [step(*BATCH).item() for _ in range(6)]
    assert step.num_compiled == 3
    assert losses == sorted(losses, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, F.mse_loss, None), "model must be a torch Module"),
        ((mlp(), F.mse_loss, None), "optimizer must be a torch Optimizer"),
    ],
)
def test_arguments_of_wrong_types_are_named(arguments: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        Step(*arguments)


def test_a_loss_that_cannot_be_called_is_named() -> None:
    model = mlp()
    with pytest.raises(ArgumentTypeError, match="loss must be a function"):
        Step(model, 3, optim.SGD(model.parameters(), 0.1))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "1", True])
def test_a_wrong_norm_is_named(value: Any) -> None:
    model = mlp()
    with pytest.raises(UsageError, match="max_grad_norm must be a positive number"):
        Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.1), max_grad_norm=value)


def test_an_optimizer_that_needs_a_closure_is_named() -> None:
    model = mlp()
    with pytest.raises(UsageError, match="without a closure; found LBFGS"):
        Step(model, F.mse_loss, optim.LBFGS(model.parameters()))


def test_parameters_that_the_optimizer_lacks_are_named() -> None:
    model = mlp()
    step = Step(model, F.mse_loss, optim.SGD(list(model.parameters())[:2], 0.1))
    step(*BATCH)
    with pytest.warns(UserWarning, match=r"model.3.weight needs a gradient"):
        step(*BATCH)


def test_nothing_warns_of_a_step_that_is_compiled() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trained_step()


@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize("use_compiler", [False, pytest.param(True, marks=needs_compiler)])
def test_targets_out_of_bounds_are_an_error_of_torch(use_compiler: bool, num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    model, (inputs, targets) = mlp(), (torch.randn(4096, 8), torch.randint(4, (4096,)))
    step = Step(
        model, nn.CrossEntropyLoss(), optim.Adam(model.parameters()), use_compiler=use_compiler
    )
    for _ in range(8):
        step(inputs, targets)
        step.wait()
    assert step.num_compiled
    before = [parameter.clone() for parameter in model.parameters()]
    targets[-1] = 7
    with pytest.raises(IndexError, match="Target 7 is out of bounds"):
        step(inputs, targets)
    assert all(map(torch.equal, before, model.parameters()))
    targets[-1] = -100
    assert step(inputs, targets).isfinite()


@needs_compiler
@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_other_threads_run_while_a_step_computes() -> None:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512))
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.01))
    batch = torch.ones(1024, 512), torch.zeros(1024, 512)
    while not step.num_compiled:
        step(*batch)
        step.wait()
    assert step.eager_reason == ""
    seen: list[float] = []
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.001):
            seen.append(time.perf_counter())

    thread = threading.Thread(target=look)
    thread.start()
    num_within = 0
    for _ in range(20):
        start = time.perf_counter()
        step(*batch)
        margin = 0.2 * (time.perf_counter() - start)
        num_within += any(start + margin < at < start + 4 * margin for at in list(seen))
    is_over.set()
    thread.join()
    assert num_within > 5


@needs_compiler
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_wait_for_what_its_parent_compiles() -> None:
    model = mlp()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.1))
    for _ in range(3):
        step(*BATCH)
    child = os.fork()
    if not child:
        step.wait()
        os._exit(0 if step(*BATCH).isfinite() else 1)
    assert os.waitpid(child, 0)[1] == 0
    step.wait()


ENDS = """
import sys
import time
import torch
from torch import nn
from cputrain import Step

model = nn.Sequential(nn.Linear(8, 16 + int(sys.argv[1])), nn.Tanh(), nn.LazyLinear(4))
model(torch.ones(4, 8))
step = Step(model, nn.MSELoss(), torch.optim.Adam(model.parameters()))
for _ in range(3):
    step(torch.ones(4, 8), torch.zeros(4, 4))
time.sleep(float(sys.argv[2]))
"""


@needs_compiler
def test_a_thread_that_compiles_ends_when_there_is_nothing_left() -> None:
    """As a process that has other threads may not be forked, a pool would be slower to start."""
    model = mlp()
    step = Step(model, F.mse_loss, optim.SGD(model.parameters(), 0.1))
    while step.num_compiled == 0:
        step(*BATCH)
    end = time.monotonic() + 20
    while "cputrain-step" in {thread.name for thread in threading.enumerate()}:
        assert time.monotonic() < end
        time.sleep(0.01)


@needs_compiler
@pytest.mark.parametrize(
    "seconds",
    [0.2, *(pytest.param(0.5 * i, marks=pytest.mark.long) for i in range(1, 9))],
)
def test_a_script_may_end_while_it_is_compiled(seconds: float, tmp_path: Path) -> None:
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    done = subprocess.run(
        [sys.executable, str(script), str(int(seconds * 10)), str(seconds)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
