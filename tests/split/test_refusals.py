"""What gives something else when its batch is divided is left as it is, and told by name."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from torch import nn

from cputrain import Split


class Of(nn.Module):
    """A model of one function, and a weight."""

    def __init__(self, function) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4))
        self.function = function

    def forward(self, x):
        return self.function(self, x * self.weight)


class Keeps(Of):
    def forward(self, x):
        self.kept = x * self.weight
        return self.kept


class Assigns(Of):
    def __init__(self) -> None:
        super().__init__(None)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        self.average = self.average * 0.9 + 0.1
        return x * self.weight + self.average


class Averages(Of):
    def __init__(self) -> None:
        super().__init__(None)
        self.register_buffer("average", torch.zeros(4))

    def forward(self, x):
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x * self.weight


def hooked() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    model[1].register_forward_hook(lambda *_: None)
    return model


def with_python(_model, x):
    return x * random.random()


WHOLE = nn.Parameter(torch.randn(4))

CASES = {
    "the operator mean in Of reduces the batch": (lambda: Of(lambda _, x: x - x.mean(0)), None),
    "mean in Of reduces the batch": (lambda: Of(lambda _, x: x.square().mean()), None),
    "from Python or NumPy": (lambda: Of(with_python), None),
    "has a hook": (hooked, None),
    "Keeps sets self.kept": (lambda: Keeps(None), None),
    "Assigns sets self.average": (Assigns, None),
    "the operator mean in Averages reduces the batch": (Averages, None),
    "cannot be divided (torch.multinomial": (
        lambda: Of(lambda _, x: x * torch.multinomial(x.abs() + 1, 4)), None
    ),
    "compiled by torch.jit": (
        lambda: nn.Sequential(torch.jit.trace(nn.Linear(4, 4), torch.randn(2, 4))), None
    ),
    "its output 1 is 3": (lambda: Of(lambda _, x: (x, len(x) * 3 // 3 % 5)), None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("reason", CASES)
def test_it_is_told_and_the_whole_batch_goes_through(reason):
    make, batch = CASES[reason]
    model = make()
    split = Split(copy.deepcopy(model) if "jit" not in reason else model, replicas=2)
    x = batch() if batch else torch.randn(8, 4)
    random.seed(1)
    torch.manual_seed(1)
    right = model(x)
    random.seed(1)
    torch.manual_seed(1)
    with pytest.warns(UserWarning, match="the model is left as it is") as told:
        found = split(x)
    assert reason in str(told[0].message)
    assert reason in split.why_not
    assert split.calls_divided == 0
    one, other = (out[0] if isinstance(out, tuple) else out for out in (right, found))
    torch.testing.assert_close(one, other)
    for a, b in zip(model.buffers(), split.buffers(), strict=True):
        torch.testing.assert_close(a, b)
    split(x)  # and it is told once


def test_the_models_own_error_is_raised_as_it_is():
    split = Split(nn.Linear(4, 2), replicas=2)
    with (
        pytest.raises(RuntimeError, match="cannot be multiplied"),
        pytest.warns(UserWarning, match="cannot be multiplied"),
    ):
        split(torch.randn(8, 5))


def test_nothing_of_the_trial_stays():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    split = Split(model, replicas=2)
    x = torch.randn(8, 4)
    torch.manual_seed(3)
    split(x)
    assert int(model[1].num_batches_tracked) == 1
    assert all(parameter.grad is None for parameter in model.parameters())
    after = torch.rand(1)
    torch.manual_seed(3)
    copy.deepcopy(model)(x)
    assert torch.equal(after, torch.rand(1))


class Hidden(nn.Module):
    """A model in which something is trained that is no parameter of it."""

    def __init__(self, how) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        if how == "in a list":
            self.others = [nn.Linear(4, 4)]
        elif how == "a plain tensor":
            self.others = torch.randn(4, requires_grad=True)
        else:
            self.others = nn.Linear(2, 4)(torch.ones(2))

    def forward(self, x):
        other = self.others[0](x) if isinstance(self.others, list) else self.others
        return self.layer(x) + other


@pytest.mark.parametrize("how", ["in a list", "a plain tensor", "made of others"])
def test_gradients_that_would_be_lost_are_told(how):
    split = Split(Hidden(how), replicas=2)
    with pytest.warns(UserWarning, match="neither a parameter nor an argument"):
        split(torch.randn(8, 4)).sum().backward()
    assert split.calls_divided == 0
