"""A twin's results: the same up to rounding, or told; and the model is as it was before."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from cputrain.learn.twin import difference_from_twin


class Deep(nn.Module):
    """Batch norms, dropout, and biases whose gradients are rounding errors."""

    def __init__(self) -> None:
        super().__init__()
        layers = [
            layer
            for number in range(6)
            for layer in (nn.Conv2d(8 if number else 3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        ]
        self.layers = nn.Sequential(*layers)
        self.dropout = nn.Dropout(0.3)
        self.last = nn.Linear(8, 4)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.layers(images).mean((2, 3))
        result: torch.Tensor = self.last(self.dropout(features))
        return result


def nothing(_: nn.Module) -> None:
    pass


def channels_last(model: nn.Module) -> None:
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def rounded(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()


def slightly_wrong(model: nn.Module) -> None:
    model.last.weight.data *= 1.0002  # type: ignore[union-attr, operator]


def without_dropout(model: nn.Module) -> None:
    model.dropout.eval()  # type: ignore[operator, union-attr]


def not_a_number(model: nn.Module) -> None:
    model.last.bias.data[0] = torch.nan  # type: ignore[union-attr, operator, index]


def difference(model: nn.Module, prepare: Callable[[nn.Module], None]) -> str:
    images = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(2))
    return difference_from_twin(model, type(model).__call__, (images,), {}, prepare)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prepare", [nothing, channels_last], ids=lambda change: change.__name__)
def test_what_is_the_same_up_to_rounding_is_accepted(
    prepare: Callable[[nn.Module], None], seed: int
) -> None:
    torch.manual_seed(seed)
    assert difference(Deep(), prepare) == ""


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "prepare",
    [rounded, slightly_wrong, without_dropout, not_a_number],
    ids=lambda change: change.__name__,
)
def test_what_is_not_is_told(prepare: Callable[[nn.Module], None], seed: int) -> None:
    torch.manual_seed(seed)
    assert "differs by" in difference(Deep(), prepare)


def test_the_model_and_its_random_numbers_are_as_before() -> None:
    model = Deep()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate()
    assert difference(model, channels_last) == ""
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.is_contiguous() for parameter in model.parameters())


CALLS: list[int] = []


class Counting(Deep):
    """Counts its calls in a global variable."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        CALLS.append(1)
        return super().forward(images)


class Drawing(Deep):
    """Draws from Python's generator."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) * random.random()


class Reading(Deep):
    """Reads an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = iter([1.0, 2.0, 3.0])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return super().forward(images) * next(self.scales)


class Failing(Deep):
    """Cannot be copied and called."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        raise ArithmeticError("not twice")


def hooked() -> nn.Module:
    model = Deep()
    model.last.register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (Counting, "it writes to the global variable CALLS"),
        (Drawing, "it draws random numbers from Python or NumPy"),
        (Reading, "it holds an iterator"),
        (Failing, "a copy of the model cannot be called: ArithmeticError: not twice"),
        (hooked, "hook"),
        (lambda: Deep().bfloat16(), "reduced precision"),
    ],
    ids=["global", "python's random", "iterator", "error", "hook", "bf16"],
)
def test_what_cannot_be_compared_is_told_and_left_alone(
    make: Callable[[], nn.Module], says: str
) -> None:
    CALLS.clear()
    model, state = make(), random.getstate()
    assert says in difference(model, channels_last)
    assert CALLS == []
    assert random.getstate() == state
    if isinstance(model, Reading):
        assert next(model.scales) == 1.0
