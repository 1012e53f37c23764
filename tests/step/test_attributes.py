"""Tensors that models keep as attributes, and not as buffers: compiled steps read them, too."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.step.test_recorded import assert_same, recorded_steps
from tests.step.training import NUM_STEPS, train, trained

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


def tensors_of(model: Any) -> list[Any]:
    """Return what is compared after each step."""
    parameters = [each.detach().clone() for each in model.parameters()]
    return [model.scale.detach().clone(), model.options.shift.clone(), *parameters]


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("in_steps", [True, False], ids=["Step", "recorded"])
@pytest.mark.filterwarnings("ignore:Step runs eagerly")
def test_steps_read_them_as_they_are(name: str, in_steps: bool) -> None:
    expected, _ = train(Scaled, CHANGES[name], look=tensors_of)
    found, num_compiled, reason = trained(in_steps, Scaled, CHANGES[name], look=tensors_of)
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
    expected, _ = train(make, leave, look=tensors_of)
    found, num_compiled, told = trained(in_steps, make, leave, look=tensors_of)
    assert not num_compiled
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
