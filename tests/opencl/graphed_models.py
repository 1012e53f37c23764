"""Replayed calls of models: scripts do the same as without, to the last bit, errors included."""

from __future__ import annotations

import copy
import gc
import pickle
import random
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from cputrain.opencl.device import devices
from cputrain.opencl.graphs.graphed_call import GraphedCall
from cputrain.opencl.graphs.graphed_models import GraphedModels
from cputrain.opencl.graphs.replayed import ReplayedCall
from cputrain.runtime.root_forward import within_call

NUM_STEPS = 10


@pytest.fixture(autouse=True)
def _with_kernels(monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    gc.collect()


class Block(nn.Module):
    """A small network with what networks have: buffers, random numbers, branches."""

    def __init__(self, width: int = 8, dropout: float = 0.2) -> None:
        super().__init__()
        self.inner = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width)
        self.dropout = nn.Dropout(dropout)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, 3)

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.norm(self.inner(x)))
        return self.out(self.dropout(torch.relu(self.left(x)) * torch.sigmoid(self.right(x))))


def batches(number: int = NUM_STEPS, size: int = 4) -> list[Any]:
    generator = torch.Generator().manual_seed(5)
    return [
        (torch.randn(size, 6, generator=generator).to("ocl"),
         torch.randint(3, (size,), generator=generator).to("ocl"))
        for _ in range(number)
    ]  # fmt: skip


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)


def plain_loop(model: nn.Module, change: Callable[[int, nn.Module], Any] = lambda *_: None) -> Any:
    optimizer = sgd(model)
    for number, (x, y) in enumerate(batches()):
        change(number, model)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        yield loss


# scripts: what they yield is compared


def trains(model):
    yield from plain_loop(model)


def keeps_outputs_and_gradients(model):
    outputs, gradients = [], []
    for x, y in batches():
        for parameter in model.parameters():
            parameter.grad = None
        outputs.append(model(x))
        functional.cross_entropy(outputs[-1], y).backward()
        gradients += [parameter.grad for parameter in model.parameters()]
    yield from outputs
    yield from gradients


def accumulates_gradients(model):
    optimizer = sgd(model)
    for number, (x, y) in enumerate(batches()):
        functional.cross_entropy(model(x), y).backward()
        if number % 3 == 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)
        yield from (parameter.grad for parameter in model.parameters())


def calls_twice_before_backward(model):
    optimizer = sgd(model)
    for x, y in batches():
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y) - 0.1 * model(x.flip(0)).square().mean()
        loss.backward()
        optimizer.step()
        yield loss


def calls_backward_twice(model):
    for x, y in batches():
        loss = functional.cross_entropy(model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        yield from [parameter.grad.clone() for parameter in model.parameters()]


def calls_backward_twice_by_mistake(model):
    for x, y in batches():
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        yield error_of(lambda loss=loss: loss.backward())


def penalizes_gradients_later(model):
    for number, (x, _) in enumerate(batches()):
        x.requires_grad_(True)
        out = model(x)
        if number < 6:
            out.square().sum().backward()
        else:
            [gradient] = torch.autograd.grad(out.square().sum(), x, create_graph=True)
            yield gradient
            (gradient.square().sum() + out.sum()).backward()
        yield x.grad
        yield from [parameter.grad.clone() for parameter in model.parameters()]


def asks_for_gradients_of_inputs(model):
    for x, _ in batches():
        x.requires_grad_(True)
        hidden = x * 2
        out = model(hidden)
        yield torch.autograd.grad(out.pow(3).mean(), [x, hidden, model.out.weight])


def sums(model):
    for x, _ in batches():
        model(x).sum().backward()
        yield from [parameter.grad.clone() for parameter in model.parameters()]


def other_gradients_later(model):
    for number, (x, _) in enumerate(batches()):
        out = model(x)
        (out.sum() if number % 4 else out.t().contiguous().square().sum()).backward()
        yield from [parameter.grad.clone() for parameter in model.parameters()]


def uses_part_of_the_output(model):
    for number, (x, _) in enumerate(batches()):
        model(x)[:, number % 3].sum().backward()
        yield from [parameter.grad.clone() for parameter in model.parameters()]


def never_calls_backward(model):
    for x, _ in batches():
        yield model(x)


def evaluates_in_between(model):
    for number, loss in enumerate(plain_loop(model)):
        yield loss
        if number % 3 == 0:
            model.eval()
            with torch.no_grad():
                yield model(batches()[0][0])
            with torch.inference_mode():
                yield model(batches()[1][0]).clone()
            model.train()


def has_batches_of_other_sizes(model):
    for number in range(14):
        x, y = batches(1, 4 if number % 5 else 3)[0]
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        yield loss


def changes_an_input(model):
    for number, (x, y) in enumerate(batches()):
        loss = functional.cross_entropy(model(x), y)
        if number > 6:
            x.add_(1)
        yield bool(error_of(loss.backward))


def changes_an_output(model):
    for number, (x, _) in enumerate(batches()):
        out = model(x)
        if number > 5:
            out *= 2
        out.square().sum().backward()
        yield model.inner.weight.grad.clone()


def changes_a_parameter_before_backward(model):
    for number, (x, y) in enumerate(batches()):
        loss = functional.cross_entropy(model(x), y)
        if number > 6:
            with torch.no_grad():
                (model.out.weight if number % 2 else model.out.bias).add_(1)
        yield bool(error_of(loss.backward))


def hooks_outputs(model):
    seen = []
    for x, _ in batches():
        out = model(x)
        out.register_hook(lambda gradient: seen.append(gradient) or gradient * 0.5)
        out.retain_grad()
        out.square().sum().backward()
        yield out.grad
        yield model.inner.weight.grad.clone()
    yield from seen


def calls_it_in_a_checkpoint(model):
    for x, _ in batches():
        x.requires_grad_(True)
        checkpoint(model, x, use_reentrant=False).square().sum().backward()
        checkpoint(model, x, use_reentrant=True).square().sum().backward()
        yield from [parameter.grad.clone() for parameter in model.parameters()]


def copies_the_model(model):
    for number, loss in enumerate(plain_loop(model)):
        yield loss
        if number in (5, 7):
            twin = copy.deepcopy(model)
            yield from plain_loop(twin)
            yield pickle.loads(pickle.dumps(model.state_dict()))["inner.weight"]


def has_a_closure(model):
    optimizer = torch.optim.LBFGS(model.parameters(), 0.1, max_iter=4)
    for x, y in batches(4):

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            return loss

        yield optimizer.step(closure)


def calls_parts_alone(model):
    for x, _ in batches():
        hidden = model.norm(model.inner(x))
        model.out(torch.tanh(hidden)).square().sum().backward()
        yield from [parameter.grad.clone() for parameter in model.inner.parameters()]


def moves_to_the_cpu_and_back(model):
    yield from plain_loop(model)
    model.cpu()
    yield model(batches()[0][0].cpu()).detach()
    model.to("ocl")
    yield from plain_loop(model)


def takes_gradients_of_some_parameters(model):
    weights = [model.inner.weight, model.out.bias]
    for number, (x, y) in enumerate(batches(14)):
        loss = functional.cross_entropy(model(x), y)
        if number < 5:
            loss.backward()
        elif number % 3 == 0:
            loss.backward(inputs=weights)
        elif number % 3 == 1:
            yield torch.autograd.grad(loss, weights)
        else:
            yield torch.autograd.grad(loss, list(model.parameters()))
        yield [each.grad.clone() for each in model.parameters()]


def holds_gradients_of_other_layouts(model):
    for number, (x, y) in enumerate(batches()):
        if number == 6:
            for each in model.parameters():
                each.grad = each.grad.t().contiguous().t()
        functional.cross_entropy(model(x), y).backward()
        yield [each.grad.clone() for each in model.parameters()]


def regularizes_parameters(model):
    for x, y in batches():
        loss = functional.cross_entropy(model(x), y)
        (loss + 0.01 * sum(each.square().sum() for each in model.parameters())).backward()
        yield [each.grad.clone() for each in model.parameters()]
        model.zero_grad()


def draws_between(model):
    for loss in plain_loop(model):
        yield loss
        yield torch.rand(3, device="ocl")


def restores_random_states(model):
    state = torch.ocl.get_rng_state()
    for loss in plain_loop(model):
        yield loss
        torch.ocl.set_rng_state(state)


def views_of_one_tensor(model):
    whole = torch.randn(40, 6, generator=torch.Generator().manual_seed(2)).to("ocl")
    for number in range(9):
        out = model(whole[4 * number : 4 * number + 4])
        out.square().sum().backward()
        yield from [parameter.grad.clone() for parameter in model.parameters()]


def writes_into_one_input(model):
    static = torch.zeros(4, 6, device="ocl")
    for x, y in batches():
        static.copy_(x)
        loss = functional.cross_entropy(model(static), y)
        loss.backward()
        yield loss


def changed(change):
    def script(model):
        yield from plain_loop(model, lambda number, model: change(model) if number == 6 else None)

    return script


def _with_new_data(model):
    model.inner.weight.data = model.inner.weight.data * 2


def _with_new_buffer(model):
    model.norm.running_mean = model.norm.running_mean + 1


def _frozen(model):
    model.inner.weight.requires_grad_(False)
    model.inner.weight.grad = None


CHANGES = {
    "evaluation": lambda model: model.eval(),
    "another rate of dropout": lambda model: setattr(model.dropout, "p", 0.7),
    "another layer": lambda model: setattr(model, "out", nn.Linear(8, 3).to("ocl")),
    "other memory": _with_new_data,
    "another buffer": _with_new_buffer,
    "a frozen parameter": _frozen,
    "a loaded checkpoint": lambda model: model.load_state_dict(
        {key: value * 0.5 for key, value in model.state_dict().items()}
    ),
    "a hook": lambda model: model.inner.register_forward_hook(lambda *given: given[2] * 2),
    "a hook of a parameter": lambda model: model.out.weight.register_hook(lambda grad: grad * 3),
    "another forward": lambda model: setattr(model, "forward", lambda x: model.out(model.inner(x))),
    "momentum of batch norm": lambda model: setattr(model.norm, "momentum", 0.5),
}  # fmt: skip

SCRIPTS = {
    script.__name__: script
    for script in (
        trains, keeps_outputs_and_gradients, accumulates_gradients, calls_twice_before_backward,
        calls_backward_twice, calls_backward_twice_by_mistake, penalizes_gradients_later,
        asks_for_gradients_of_inputs, sums, other_gradients_later, uses_part_of_the_output,
        never_calls_backward, evaluates_in_between, has_batches_of_other_sizes, changes_an_input,
        changes_an_output, changes_a_parameter_before_backward, hooks_outputs,
        calls_it_in_a_checkpoint, copies_the_model, has_a_closure, calls_parts_alone, draws_between,
        moves_to_the_cpu_and_back, takes_gradients_of_some_parameters,
        holds_gradients_of_other_layouts, regularizes_parameters,
        restores_random_states, views_of_one_tensor, writes_into_one_input,
    )
} | {name: changed(change) for name, change in CHANGES.items()}  # fmt: skip

OTHER_SUMS = {"penalizes_gradients_later", "regularizes_parameters"}
"""Scripts in which gradients of parameters have parts from elsewhere, added up in another order."""

NOT_REPLAYED = {"never_calls_backward", "calls_backward_twice", "calls_parts_alone"}
"""Scripts none of whose calls is replayed."""


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def values_of(script: Any, make: Callable[[], nn.Module], *, replayed: bool) -> list[Any]:
    torch.manual_seed(0)
    random.seed(0)
    model = make().to("ocl")
    values = []
    with nullcontext() if replayed else within_call():
        for value in script(model):
            values += flat(value)
    return (
        values
        + [each.cpu() for each in model.state_dict().values()]
        + [torch.rand(2, device="ocl").cpu()]
    )


def flat(value: Any) -> list[Any]:
    if isinstance(value, tuple | list):
        return [each for member in value for each in flat(member)]
    return [value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value]


@pytest.fixture
def replays(monkeypatch):
    """The replayed calls."""
    calls = []
    original = ReplayedCall.run
    monkeypatch.setattr(
        ReplayedCall, "run", lambda self: calls.append(self.graphed) or original(self)
    )
    return calls


def assert_same(script: Any, make: Callable[[], nn.Module], atol: float = 0.0) -> None:
    found = values_of(script, make, replayed=True)
    expected = values_of(script, make, replayed=False)
    assert len(found) == len(expected)
    for number, (value, other) in enumerate(zip(found, expected, strict=True)):
        if isinstance(other, torch.Tensor):
            assert value.stride() == other.stride()
            torch.testing.assert_close(
                value,
                other,
                rtol=0,
                atol=atol,
                equal_nan=True,
                msg=lambda text, number=number: f"value {number}: {text}",
            )
        else:
            assert value == other


@pytest.mark.filterwarnings("ignore:grad and param do not obey")
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_the_same(name, replays):
    assert_same(SCRIPTS[name], Block, 1e-6 if name in OTHER_SUMS else 0.0)
    assert bool(replays) == (name not in NOT_REPLAYED)


# models


class Several(Block):
    def forward(self, x):
        x = torch.tanh(self.norm(self.inner(x)))
        return {
            "loss": self.out(self.left(x)).square().mean(),
            "hidden": [x, self.right(x)],
            "size": 3,
        }


class TwoHeads(Block):
    def forward(self, x):
        return torch.tanh(self.left(torch.tanh(self.inner(x)))).exp(), self.out(
            torch.relu(self.right(torch.tanh(self.norm(x @ self.inner.weight.T))))
        )


class Counts(Block):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


class Branches(Block):
    def forward(self, x):
        return super().forward(-x if x.sum() > 0 else x)


class LayerDrop(Block):
    def forward(self, x):
        return super().forward(x) * (2.0 if random.random() < 0.5 else 1.0)


class TorchLayerDrop(Block):
    def forward(self, x):
        return super().forward(x) * (2.0 if torch.rand(()) < 0.5 else 1.0)


class Attribute(Block):
    def __init__(self):
        super().__init__()
        self.scale = torch.full((1,), 2.0)

    def _apply(self, function, recurse=True):
        self.scale = function(self.scale)
        return super()._apply(function, recurse)

    def forward(self, x):
        return super().forward(x) * self.scale


class FromTheCPU(Block):
    def forward(self, x):
        return super().forward(x) * torch.arange(3.0).to("ocl")


class CPUNumber(Block):
    def __init__(self):
        super().__init__()
        self.number = torch.tensor(1.0)

    def _apply(self, function, recurse=True):
        super()._apply(function, recurse)
        return self

    def forward(self, x):
        self.number += 1
        return super().forward(x) * self.number


SCALE = torch.tensor(1.0)


class GlobalNumber(Block):
    def forward(self, x):
        return super().forward(x) * SCALE


class GlobalNumberRead(Block):
    def forward(self, x):
        return super().forward(x) * SCALE.item()


class Tied(Block):
    def __init__(self):
        super().__init__()
        self.right = self.left


class Unused(Block):
    def __init__(self):
        super().__init__()
        self.never = nn.Linear(3, 3)


class ReturnsItsInput(Block):
    def forward(self, x):
        return super().forward(x), x


class Holder:
    def __init__(self, out):
        self.out = out


class ReturnsAnObject(Block):
    def forward(self, x):
        return Holder(super().forward(x))


class ReturnsATensorTwice(Block):
    def forward(self, x):
        out = super().forward(x)
        return {"out": out, "all": [out, self.inner(x)]}


class ReturnsViews(Block):
    def forward(self, x):
        return super().forward(x).t()[1:]


class ChangesItsInput(Block):
    def forward(self, x):
        return super().forward(x.clamp_(-1, 1))


class Gradients(Block):
    def forward(self, x):
        with torch.enable_grad():
            y = x.detach().requires_grad_()
            [inner] = torch.autograd.grad(torch.tanh(self.inner(y)).sum(), y)
        return super().forward(x + inner)


class Plain(nn.Sequential):
    def __init__(self):
        super().__init__(
            *(layer for _ in range(6) for layer in (nn.Linear(6, 6), nn.GELU())), nn.Linear(6, 3)
        )


class Convolutions(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Unflatten(1, (1, 6)),
            nn.Conv1d(1, 4, 3, padding=1),
            nn.BatchNorm1d(4),
            nn.Hardswish(),
            nn.Conv1d(4, 4, 3, groups=2, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool1d(2),
            nn.Flatten(),
            nn.Linear(12, 3),
        )


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(48, 3)

    def forward(self, x):
        return self.out(self.layer(self.embed((x * 4).long().clamp(-9, 9) + 9)).flatten(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTM(1, 4, batch_first=True)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        return self.out(self.cell(x.unsqueeze(2))[0][:, -1])


def trains_dictionaries(model):
    optimizer = sgd(model)
    for number, (x, _) in enumerate(batches()):
        optimizer.zero_grad()
        returned = model(x)
        assert returned["size"] == 3
        loss = returned["loss"]
        (loss + returned["hidden"][1].mean() if number % 5 == 4 else loss).backward()
        optimizer.step()
        yield [loss, *returned["hidden"]]


def trains_heads(model):
    for number, (x, _) in enumerate(batches()):
        left, right = model(x)
        if number % 2:
            left.sum().backward(retain_graph=True)
            right.square().sum().backward()
        else:
            (left.sum() + right.square().sum()).backward()
        yield from [None if each.grad is None else each.grad.clone() for each in model.parameters()]


def trains_tuples(model):
    for x, y in batches():
        out, same = model(x)
        assert same is x
        functional.cross_entropy(out, y).backward()
        yield model.inner.weight.grad.clone()


def trains_objects(model):
    for x, y in batches():
        functional.cross_entropy(model(x).out, y).backward()
        yield model.inner.weight.grad.clone()


def trains_repeated(model):
    for x, y in batches():
        returned = model(x)
        assert returned["out"] is returned["all"][0]
        functional.cross_entropy(returned["out"], y).backward()
        yield model.inner.weight.grad.clone(), returned["all"][1]


def changes_a_global_tensor(model):
    SCALE.fill_(1)
    for number, (x, _) in enumerate(batches()):
        SCALE.fill_(3 if number == 7 else 1)
        out = model(x)
        out.sum().backward()
        yield out


def trains_views(model):
    for x, _ in batches():
        model(x).square().sum().backward()
        yield model.inner.weight.grad.clone()


class Case(NamedTuple):
    make: type[nn.Module]
    is_replayed: bool
    script: Any = trains


CASES = (
    Case(Several, True, trains_dictionaries), Case(TwoHeads, False, trains_heads),
    Case(Counts, False), Case(Branches, False), Case(LayerDrop, False), Case(TorchLayerDrop, False),
    Case(Attribute, True), Case(FromTheCPU, False), Case(CPUNumber, False), Case(Tied, True),
    Case(GlobalNumber, False, changes_a_global_tensor),
    Case(GlobalNumberRead, False, changes_a_global_tensor),
    Case(Unused, True), Case(ReturnsItsInput, False, trains_tuples),
    Case(ReturnsAnObject, False, trains_objects), Case(ReturnsViews, True, trains_views),
    Case(ReturnsATensorTwice, True, trains_repeated), Case(ChangesItsInput, False),
    Case(Gradients, True), Case(Plain, True), Case(Convolutions, True), Case(Attention, True),
    Case(Recurrent, True),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.make.__name__)
def test_a_model_trains_as_without(case, replays):
    assert_same(case.script, case.make)
    assert bool(replays) == case.is_replayed


class Remembers(Block):
    """Sets an attribute to the same value in each forward."""

    last = None

    def forward(self, x):
        self.last = x.size(1)
        return super().forward(x)


@pytest.mark.parametrize(("make", "is_replayed"), [(Counts, False), (Remembers, True)])
def test_an_installed_model_may_set_attributes_that_stay(make, is_replayed, monkeypatch, replays):
    folders = "cputrain.opencl.graphs.graphed_models.SITE_FOLDERS"
    monkeypatch.setattr(folders, (str(Path(__file__).parent),))
    assert_same(trains, make)
    assert bool(replays) == is_replayed


def gradients_under_autocast():
    """Gradients of steps, of which the last ones call backward twice."""
    torch.manual_seed(0)
    model = Block(width=16, dropout=0.0).to("ocl")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = []
    for step, (x, y) in enumerate(batches()):
        optimizer.zero_grad()
        with torch.autocast("ocl", torch.bfloat16):
            loss = functional.cross_entropy(model(x), y)
        if step > NUM_STEPS - 3:
            loss.backward(retain_graph=True)
        loss.backward()
        gradients += [parameter.grad.cpu() for parameter in model.parameters()]
        optimizer.step()
    return gradients


def test_a_second_backward_is_that_of_a_call_under_autocast(replays, monkeypatch):
    calls = []
    original = ReplayedCall.call_again
    monkeypatch.setattr(
        ReplayedCall, "call_again", lambda *args: calls.append(1) or original(*args)
    )
    gradients = gradients_under_autocast()
    assert replays
    assert len(calls) == 2
    with within_call():
        expected = gradients_under_autocast()
    assert all(map(torch.equal, gradients, expected))


def test_threads_train_models_of_their_own(replays):
    def train(values):
        torch.manual_seed(0)
        for loss in plain_loop(Block(dropout=0.0).to("ocl")):
            values.append(loss.item())

    found = [[], [], []]
    torch.manual_seed(0)
    threads = [threading.Thread(target=train, args=(values,)) for values in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len(values) == NUM_STEPS for values in found)


def test_threads_call_one_model(replays):
    torch.manual_seed(0)
    model = Block(dropout=0.0).to("ocl")
    x = batches()[0][0]
    for _ in range(6):
        model(x).sum().backward()
    assert replays
    expected = [each.grad.cpu() / 6 for each in model.parameters()]
    faults = []

    def call():
        for _ in range(10):
            for each, gradient in zip(
                torch.autograd.grad(model(x).sum(), list(model.parameters())), expected, strict=True
            ):
                if not torch.allclose(each.cpu(), gradient, atol=1e-5):
                    faults.append(each)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


def test_graphs_are_dropped_where_memory_is_short(replays, monkeypatch):
    model = Block(width=800).to("ocl")
    losses = list(plain_loop(model))
    assert replays
    device = devices()[0]
    torch.ocl.empty_cache()
    monkeypatch.setattr(device, "memory_bytes", device.stats().reserved + 1000)
    assert device.pinned
    x = torch.ones(1 << 11, device="ocl")
    assert not device.pinned
    assert x.sum().item() == 1 << 11
    more = list(plain_loop(model))
    assert len(more) == len(losses)


def test_memory_is_that_of_the_model_alone_once_it_is_gone(replays):
    device = devices()[0]
    gc.collect()
    before = device.stats().allocated
    model = Block().to("ocl")
    losses = [loss.item() for loss in plain_loop(model)]
    assert replays
    del model
    replays.clear()
    for _ in range(2):  # the memory of gradients goes with the second
        gc.collect()
    assert len(losses) == NUM_STEPS
    assert device.stats().allocated == before


def test_a_model_that_its_forward_holds_is_collected(replays):
    def train():
        model = Block().to("ocl")
        model.forward = lambda x: model.out(torch.tanh(model.left(torch.tanh(model.inner(x)))))
        for _ in range(NUM_STEPS):
            model(batches()[0][0]).sum().backward()
        return weakref.ref(model)

    reference = train()
    assert replays
    replays.clear()
    gc.collect()
    assert reference() is None
    assert not devices()[0].pinned


def test_a_fault_of_a_capture_leaves_no_trace(monkeypatch):
    def fails(*_, **__):
        raise ValueError("planted")

    monkeypatch.setattr(GraphedCall, "_prepare", fails)
    assert_same(trains, Block)
    monkeypatch.undo()
    gc.collect()
    assert not devices()[0].pinned


def pieces(draw: random.Random) -> list[nn.Module]:
    kinds = (
        lambda: nn.Linear(6, 6), lambda: nn.Linear(6, 6, bias=False), nn.ReLU, nn.GELU, nn.SiLU,
        lambda: nn.Dropout(0.3), lambda: nn.BatchNorm1d(6), lambda: nn.LayerNorm(6), nn.Tanh,
        lambda: nn.Softmax(1), lambda: nn.Hardswish(), lambda: nn.LeakyReLU(0.1), nn.ELU,
        lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Conv1d(2, 2, 3, padding=1), nn.Flatten()),
        lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)), lambda: nn.GroupNorm(2, 6),
    )  # fmt: skip
    return [
        nn.Linear(6, 6),
        *(draw.choice(kinds)() for _ in range(draw.randint(3, 10))),
        nn.Linear(6, 3),
    ]


def generated(seed: int) -> Any:
    """A script of random deeds."""
    draw = random.Random(seed)
    deeds = [
        draw.choice(
            (
                "step",
                "step",
                "step",
                "eval",
                "accumulate",
                "twice",
                "scaled",
                "frozen",
                "retained",
                "small",
            )
        )
        for _ in range(14)
    ]
    start = draw.randint(3, 6)
    optimizer_class = draw.choice((torch.optim.SGD, torch.optim.AdamW, torch.optim.RMSprop))

    def script(model):
        optimizer = optimizer_class(model.parameters(), 0.01)
        data = batches(30)
        for number, deed in enumerate(["step"] * start + deeds):
            x, y = data[number]
            if deed != "accumulate":
                optimizer.zero_grad(set_to_none=number % 3 > 0)
            if deed == "small":
                x, y = x[:3], y[:3]
            if deed == "frozen":
                model[0].weight.requires_grad_(not model[0].weight.requires_grad)
            model.train(deed != "eval")
            out = model(x)
            loss = functional.cross_entropy(out, y)
            if deed == "twice":
                loss = loss + functional.mse_loss(model(x + 1), out.detach())
            if deed == "scaled":
                loss = loss * 128
            loss.backward(retain_graph=deed == "retained")
            if deed == "retained":
                loss.backward()
            optimizer.step()
            yield loss, out

    return script


@pytest.mark.parametrize("part", range(5))
def test_generated_loops(part, pytestconfig, replays):
    number = 3 if pytestconfig.option.markexpr == "not long" else 40
    for seed in range(part * number, (part + 1) * number):
        chance = random.Random(seed)
        layers = pieces(chance)
        assert_same(generated(seed), lambda layers=layers: nn.Sequential(*copy.deepcopy(layers)))
    assert replays


@pytest.mark.parametrize(
    "end", ["", "import sys; sys.exit(3)", "model.keep = loss", "torch.kept = model"]
)
def test_nothing_is_said_at_exit(tmp_path, end):
    path = tmp_path / "script.py"
    path.write_text(
        "import torch, cputrain.opencl\n"
        "model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(5))).to('ocl')\n"
        "x = torch.randn(2, 4).to('ocl')\n"
        "for _ in range(8):\n"
        "    loss = model(x).square().sum()\n"
        "    loss.backward()\n" + end
    )
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stderr) == (3 if "exit" in end else 0, "")


def test_the_last_line_tells_what_was_replayed(monkeypatch, tmp_path):
    monkeypatch.setattr(devices()[0], "is_cpu", False)
    graphed = GraphedModels()
    monkeypatch.setattr("cputrain.opencl.graphs.graphed_models.SHORTAGE_HOOKS", [])

    def train(make):
        model = make().to("ocl")
        for x, _ in batches():
            graphed.call_model(within(nn.Module.__call__), model, x).sum().backward()

    def within(call):
        def inner(*args):
            with within_call():
                return call(*args)

        return inner

    train(Counts)
    assert graphed.describe().startswith("calls on ocl not replayed: ")
    assert "calls" in graphed.describe()
    train(Plain)
    assert graphed.describe() == "replayed 6 forward passes on ocl"
