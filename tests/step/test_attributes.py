"""Tensors that models keep as attributes, and not as buffers: compiled steps read them, too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim

import cputrain
from tests.step.test_recorded import assert_same, recorded_steps

NUM_STEPS = 24

pytestmark = pytest.mark.usefixtures("_replayed")


class Scaled(nn.Module):
    """A network whose output is scaled by tensors that are no buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 8), nn.Linear(8, 3)
        self.scale = torch.linspace(0.5, 1.5, 8)
        self.again = self.scale
        self.options = SimpleNamespace(shift=torch.tensor([0.1, 0.2, 0.3]), power=2)
        self.seen = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.body(x)) * self.scale + self.again
        return self.head(hidden) + self.options.shift  # type: ignore[no-any-return]


class Counting(Scaled):
    def forward(self, x: Tensor) -> Tensor:
        self.scale += 0.01
        return super().forward(x)


class Trained(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.scale.requires_grad_()


class Sharing(Scaled):
    def __init__(self) -> None:
        super().__init__()
        self.scale = self.body.bias.detach()


def leave(*_: Any) -> None:
    pass


def change_numbers(model: Any, _: int) -> None:
    with torch.no_grad():
        model.scale.mul_(0.97)
        model.options.shift.add_(0.01)


def replace_at_times(model: Any, step: int) -> None:
    if step in {9, 17}:
        model.scale = model.scale * 0.5
        model.options.shift = torch.zeros(3)


def replace_always(model: Any, step: int) -> None:
    model.scale = torch.full((8,), 1 + step / NUM_STEPS)


def replace_unread(model: Any, step: int) -> None:
    model.seen = torch.tensor(float(step))


CHANGES = {
    each.__name__: each
    for each in (leave, change_numbers, replace_at_times, replace_always, replace_unread)
}


def train(
    make: Callable[[], Any],
    change: Callable[[Any, int], None],
    *,
    in_steps: bool = False,
    wait: Callable[[], object] = leave,
) -> tuple[list[Any], Any]:
    """Train by a loop or by `Step`; return losses and tensors, and the step if there is one."""
    torch.manual_seed(0)
    model, loss_fn = make(), F.cross_entropy
    optimizer = optim.SGD(model.parameters(), 0.1, momentum=0.9)
    whole = cputrain.Step(model, loss_fn, optimizer) if in_steps else None
    found: list[Any] = []
    for step in range(NUM_STEPS):
        change(model, step)
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        if whole is None:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
        else:
            loss = whole(x, y)
            whole.wait()
        wait()
        found += [loss.item(), model.scale.detach().clone(), model.options.shift.clone()]
    return found + [each.detach() for each in model.parameters()], whole


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("in_steps", [True, False], ids=["Step", "recorded"])
@pytest.mark.filterwarnings("ignore:Step runs eagerly")
def test_steps_read_them_as_they_are(name: str, in_steps: bool) -> None:
    expected, _ = train(Scaled, CHANGES[name])
    if in_steps:
        found, step = train(Scaled, CHANGES[name], in_steps=True)
        num_compiled, reason = step.num_compiled, step.eager_reason
    else:
        with recorded_steps() as steps:
            found, _ = train(Scaled, CHANGES[name], wait=steps.recorder.wait)
            num_compiled, reason = steps.recorder.num_compiled, steps.recorder.end_reason
    assert_same(found, expected)
    if name == "replace_always" and not in_steps:
        assert not num_compiled
    elif name == "replace_at_times":
        assert num_compiled > 2, reason
    else:
        assert num_compiled > NUM_STEPS // 2, reason


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (Counting, "is changed in place|sets an attribute"),
        (Trained, "comes from outside|neither parameter"),
        (Sharing, "neither parameter"),
    ],
)
@pytest.mark.parametrize("in_steps", [True, False], ids=["Step", "recorded"])
@pytest.mark.filterwarnings("ignore:Step runs eagerly")
def test_others_are_left_eager_by_name(
    make: Callable[[], Any], reason: str, in_steps: bool
) -> None:
    expected, _ = train(make, leave)
    if in_steps:
        found, step = train(make, leave, in_steps=True)
        assert not step.num_compiled
        told = step.eager_reason
    else:
        with recorded_steps() as steps:
            found, _ = train(make, leave, wait=steps.recorder.wait)
            assert not steps.recorder.num_compiled
            told = steps.recorder.end_reason
    assert_same(found, expected)
    assert any(each in told for each in reason.split("|")), told


def zero_later(model: Scaled, step: int) -> None:
    """Change a tensor between the model's call and `backward`, in one step."""
    if step == NUM_STEPS // 2:
        model.scale.zero_()


def test_one_that_changes_before_backward_for_the_first_time_is_an_error() -> None:
    torch.manual_seed(0)
    model = Scaled()

    def run(wait: Callable[[], object]) -> None:
        for step in range(NUM_STEPS):
            model.zero_grad()
            loss = F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))
            zero_later(model, step)
            loss.backward()
            wait()

    with recorded_steps() as steps, pytest.raises(RuntimeError, match="inplace operation"):
        run(steps.recorder.wait)
