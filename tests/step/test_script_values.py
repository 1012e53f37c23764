"""Whatever a forward reads or calls, and wherever it is: a script does what it does eagerly."""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim

import cputrain
from tests.runtime import script_helpers
from tests.runtime.telling import TELLING, Plain
from tests.selected import some
from tests.step.training import NUM_STEPS, train, trained

pytestmark = [
    pytest.mark.usefixtures("_replayed"),
    pytest.mark.filterwarnings("ignore:Step runs eagerly"),
]


def halfway(change: Callable[[Any], Any]) -> Callable[[Any, int], Any]:
    """Return what changes a model in the middle of its training."""
    return lambda model, step: change(model) if step == NUM_STEPS // 2 else None


@pytest.mark.parametrize("make", TELLING)
def test_what_a_forward_prints_is_printed(make: type, capsys: pytest.CaptureFixture[str]) -> None:
    expected, _ = train(make)
    printed = capsys.readouterr().out
    assert printed
    losses, _, _ = trained(False, make)
    assert capsys.readouterr().out == printed
    assert losses == pytest.approx(expected, rel=1e-4)


def told_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    print("loss")
    return F.cross_entropy(outputs, targets)


def test_what_a_loss_function_prints_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    model = Plain()
    step = cputrain.Step(model, told_loss, optim.SGD(model.parameters(), 0.1))
    for _ in range(12):
        step(torch.randn(6, 4), torch.randint(3, (6,)))
        step.wait()
    assert step.eager_reason == "told_loss calls print"
    assert capsys.readouterr().out == "loss\n" * 12


class SetsItsResult(Plain):
    def change(self, x: Tensor) -> Tensor:
        self.last = x.detach()
        return x


@pytest.mark.parametrize("in_steps", [True, False], ids=["Step", "recorded"])
def test_an_attribute_that_a_forward_sets_is_set(in_steps: bool) -> None:
    models: list[Any] = []

    def make() -> nn.Module:
        models.append(SetsItsResult())
        return models[-1]

    train(make)
    trained(in_steps, make)
    assert type(models[1].last) is Tensor
    torch.testing.assert_close(models[1].last, models[0].last)


class Quiet(Plain):
    """Prints nothing, and has values made by classes."""

    def change(self, x: Tensor) -> Tensor:
        return Kept(x).x + sum(part for part in x)


class Kept(NamedTuple):
    x: Tensor


@pytest.mark.parametrize("in_steps", [True, False], ids=["Step", "recorded"])
def test_what_is_called_beside_a_forward_is_none_of_it(
    in_steps: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Torch writes messages meanwhile; what handles them may print."""
    caplog.set_level("DEBUG")
    expected, _ = train(Quiet)
    losses, num_compiled, reason = trained(in_steps, Quiet)
    assert losses == pytest.approx(expected, rel=1e-4)
    assert num_compiled > 3, reason


# what changes


class Option:
    def __init__(self) -> None:
        self.activation: Any = F.relu
        self.factor = 1.0

    def act(self, x: Tensor) -> Tensor:
        return self.activation(x) * self.factor  # type: ignore[no-any-return]


activation: Any = torch.sigmoid

option = Option()


class Reads(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.activation: Any = F.relu
        self.option, self.layers = Option(), [F.relu, torch.tanh]
        self.by_name: Any = {"act": F.relu}
        self.ordered = OrderedDict(act=F.relu, factor=1.0)
        self.waiting, self.mapped = deque([F.relu, 1.0]), defaultdict(lambda: F.relu, a=torch.tanh)
        self.numbers, self.raw = np.ones(3), array("d", [1.0, 2.0])
        self.partly: Any = partial(scaled_by, 1.0)
        self.kept = Factors(1.0, F.relu)
        self.mean: Any = torch.mean

    def change(self, x: Tensor) -> Tensor:
        x = self.activation(x) + activation(x) + self.option.act(x) + option.act(x)
        x = x + self.layers[0](x) + self.by_name["act"](x) + script_helpers.scale(x)
        x = x + self.ordered["act"](x) * self.ordered["factor"] + self.waiting[0](x)
        x = x + self.mapped["a"](x) * float(self.numbers[0]) * self.raw[0] + self.partly(x)
        return (x + self.mean(x) + self.kept.act(x) * self.kept.factor) / 10  # type: ignore[no-any-return]


class Factors(NamedTuple):
    factor: float
    act: Any


def scaled_by(factor: float, x: Tensor) -> Tensor:
    return x * factor


def set_global(_: Any) -> None:
    global activation
    activation = torch.tanh


def set_object(_: Any) -> None:
    global option
    option = Option()
    option.activation = torch.tanh


def patch_class(_: Any) -> None:
    Option.act = lambda self, x: x * 2 * self.factor  # type: ignore[method-assign]


CHANGES: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda model: setattr(model, "activation", torch.tanh),
    "builtin": lambda model: setattr(model, "mean", torch.amax),
    "object's attribute": lambda model: setattr(model.option, "activation", torch.tanh),
    "object's number": lambda model: setattr(model.option, "factor", 3.0),
    "object": lambda model: setattr(model, "option", Shifted()),
    "list": lambda model: model.layers.reverse(),
    "other list": lambda model: setattr(model, "layers", [torch.tanh]),
    "dictionary": lambda model: model.by_name.update(act=torch.tanh),
    "ordered dictionary": lambda model: model.ordered.update(factor=3.0),
    "function in an ordered dictionary": lambda model: model.ordered.update(act=torch.tanh),
    "deque": lambda model: model.waiting.rotate() or model.waiting.appendleft(torch.tanh),
    "default dictionary": lambda model: model.mapped.clear(),
    "array of NumPy": lambda model: model.numbers.fill(3.0),
    "array": lambda model: model.raw.__setitem__(0, 3.0),
    "partial": lambda model: setattr(model, "partly", partial(scaled_by, 3.0)),
    "named tuple": lambda model: setattr(model, "kept", model.kept._replace(factor=3.0)),
    "global": set_global,
    "global object": set_object,
    "global object's number": lambda _: setattr(option, "factor", 3.0),
    "module's number": lambda _: setattr(script_helpers, "FACTOR", 3.0),
    "module's function": lambda _: setattr(script_helpers, "scale", torch.tanh),
    "method of a class": patch_class,
    "forward of the class": lambda _: setattr(
        Reads, "forward", lambda self, x: self.head(self.body(x))
    ),
    "method of the model": lambda model: setattr(model, "change", torch.tanh),
    "class of the model": lambda model: setattr(model, "__class__", Plain),
}


class Shifted(Option):
    def act(self, x: Tensor) -> Tensor:
        return super().act(x) + 1


ORIGINALS = (Reads.forward, Option.act, script_helpers.scale)


def restore() -> None:
    """Have all as it was before a change."""
    global activation, option
    activation, option, script_helpers.FACTOR = torch.sigmoid, Option(), 1.0
    Reads.forward, Option.act, script_helpers.scale = ORIGINALS  # type: ignore[method-assign]


@pytest.fixture
def _restored() -> Iterator[None]:
    yield
    restore()


@pytest.mark.usefixtures("_restored")
@pytest.mark.parametrize("in_steps", [True, False], ids=["Step", "recorded"])
@pytest.mark.parametrize("name", some(CHANGES, 6))
def test_what_a_forward_reads_may_change(name: str, in_steps: bool) -> None:
    expected, _ = train(Reads, halfway(CHANGES[name]))
    restore()
    unchanged, _ = train(Reads)
    assert expected != pytest.approx(unchanged, rel=1e-4)
    restore()
    losses, num_compiled, reason = trained(in_steps, Reads, halfway(CHANGES[name]))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert num_compiled > 3, reason


class ReadsLarge(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.table = np.zeros(100_000)

    def change(self, x: Tensor) -> Tensor:
        return x + float(self.table[0])


@pytest.mark.parametrize("in_steps", [True, False], ids=["Step", "recorded"])
def test_large_arrays_are_left_eager(in_steps: bool) -> None:
    def change(model: Any) -> None:
        model.table[0] = 1

    expected, _ = train(ReadsLarge, halfway(change))
    losses, num_compiled, reason = trained(in_steps, ReadsLarge, halfway(change))
    assert losses == pytest.approx(expected, rel=1e-4)
    assert not num_compiled
    assert "large array" in reason
