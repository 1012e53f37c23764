"""What a forward may read is part of a proof, however its name is written; the rest is not."""

from __future__ import annotations

import functools
import operator
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from cputrain import Split
from cputrain.split.proof.read_names import ReadNames

pytestmark = pytest.mark.usefixtures("one_thread")


def mixed(h):
    return h - h.mean(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.mixes = False

    def forward(self, x):
        return self.last(self.changed(torch.tanh(self.first(x))))

    def changed(self, h):
        return mixed(h) if self.reads() else h

    def reads(self):
        return False


class Directly(Net):
    def reads(self):
        return self.mixes


def function(model):
    return model.mixes


class ByAFunction(Net):
    def reads(self):
        return function(self)


class ByAProperty(Net):
    @property
    def does(self):
        return self.mixes

    def reads(self):
        return self.does


class ByAConstantName(Net):
    def reads(self):
        return getattr(self, "mixes", False)


class ByAComputedName(Net):
    def reads(self):
        return getattr(self, "mix" + chr(101) + "s")


class ByAFormattedName(Net):
    def reads(self):
        end = "es"
        return getattr(self, f"mix{end}")


class ByItsDictionary(Net):
    def reads(self):
        key = "se"[::-1]
        return self.__dict__["mix" + key]


class ByVars(Net):
    def reads(self):
        return list(vars(self).values())[-1]


class ByAttrgetter(Net):
    def reads(self):
        return operator.attrgetter("mix" + "se"[::-1])(self)


class Helper:
    def __init__(self, model):
        self.models = [model]

    def asks(self):
        return self.models[0].mixes


class ByAnObject(Net):
    def __init__(self):
        super().__init__()
        self.helper = Helper(self)

    def reads(self):
        return self.helper.asks()


class Registry:
    def __init__(self):
        self.functions = {"reads": function}

    def __getitem__(self, name):
        return self.functions[name]


REGISTRY = Registry()


class ByATable(Net):
    def reads(self):
        return REGISTRY["reads"](self)


class OfABase(Directly):
    def forward(self, x):
        return super().forward(x)


class Child(nn.Module):
    def forward(self, h, model):
        return mixed(h) if model[0].mixes else h


class ByAnotherModule(Net):
    def __init__(self):
        super().__init__()
        self.child = Child()

    def changed(self, h):
        return self.child(h, (self,))


def traced(function):
    @functools.wraps(function)
    def inner(*args):
        return function(*args)

    return inner


class Decorated(Net):
    @traced
    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.last(mixed(h) if self.mixes else h)


class ByAPartial(Net):
    ask = functools.partialmethod(function)

    def reads(self):
        return self.ask()


class ByALambda(Net):
    asks = staticmethod(lambda model: model.mixes)

    def reads(self):
        return self.asks(self)


class ByACachedProperty(Net):
    def __init__(self):
        super().__init__()
        assert self.options

    @functools.cached_property
    def options(self):
        return SimpleNamespace(model=[self])

    def reads(self):
        return self.options.model[0].mixes


class ByOwnGetattribute(Net):
    def __getattr__(self, name):
        return self.__dict__["mixes"] if name == "is_on" else super().__getattr__(name)

    def reads(self):
        return self.is_on


READERS = [
    Directly, ByAFunction, ByAProperty, ByAConstantName, ByAComputedName, ByAFormattedName,
    ByItsDictionary, ByVars, ByAttrgetter, ByAnObject, ByATable, OfABase, ByAnotherModule,
    Decorated, ByAPartial, ByALambda, ByACachedProperty, ByOwnGetattribute,
]  # fmt: skip


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 4, generator=generator) for _ in range(count)]


@pytest.mark.filterwarnings("ignore:cputrain.Split")
@pytest.mark.parametrize("kind", READERS)
def test_a_flag_that_a_forward_reads_is_seen(kind):
    torch.manual_seed(0)
    model = kind()
    split = Split(model, replicas=2)
    for number, batch in enumerate(batches(12)):
        model.mixes = number >= 6
        assert torch.allclose(split(batch), model(batch), atol=1e-6), number
        if number == 5:
            assert split.calls_divided, split.why_not
    assert "mean" in split.why_not


class Trainer:
    """Whatever a script keeps in its module: it changes, and reaches the module itself."""

    def __init__(self, model):
        self.parts = [SimpleNamespace(trainer=self, model=model, others=[]) for _ in range(40)]
        for part in self.parts:
            part.others += self.parts
        self.step, self.batches = 0, iter(range(100))


class Plain(Net):
    def changed(self, h):
        return h

    def training_step(self, batch):
        self.step += 1
        self.trainer.step += 1
        self.losses.append(self(batch).sum())


def test_what_no_forward_reads_is_no_matter():
    torch.manual_seed(0)
    model = Plain()
    model.step, model.losses, model.trainer = 0, [], Trainer(model)
    model.optimizer = torch.optim.Adam(model.parameters())
    split = Split(model, replicas=2)
    for batch in batches(60):
        model.step += 1
        model.trainer.step += 1
        loss = split(batch).square().sum()
        model.losses.append(loss.detach())
        model.optimizer.zero_grad()
        loss.backward()
        model.optimizer.step()
        next(model.trainer.batches)
    assert split.calls_divided == 60
    assert split.why_not == ""


def test_names_are_those_of_all_that_a_forward_may_call():
    names = ReadNames(ByAFunction())
    assert names.has(ByAFunction, "mixes")
    assert names.has(ByAFunction, "first")
    assert not names.has(ByAFunction, "optimizer")
    assert ReadNames(ByAComputedName()).has(ByAComputedName, "optimizer")
