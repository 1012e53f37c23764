"""Recorded loops whose states are carried from step to step, as those of recurrent networks are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn, optim

from cputrain.step.recorded.recorder import Recorder
from tests.step.test_recorded import assert_same, recorded_steps

NUM_STEPS = 24

pytestmark = pytest.mark.usefixtures("_replayed")


class Carrying(nn.Module):
    """A recurrent network that is given its state, and returns the next one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.cells, self.head = getattr(nn, kind)(4, 8), nn.Linear(8, 5)
        self.side = nn.Linear(4, 3)

    def forward(self, x: Tensor, state: Any) -> tuple[Tensor, Any, Tensor]:
        out, state = self.cells(x, state)
        return self.head(out).view(-1, 5), state, self.side(x.detach())


def first_state(kind: str) -> Any:
    zero = torch.zeros(1, 6, 8)
    return (zero, zero.clone()) if kind == "LSTM" else zero


def each(function: Callable[[Tensor], Tensor]) -> Callable[[Any], Any]:
    """Return a function of a state, which may be a tuple of tensors."""
    return lambda state: (
        function(state) if isinstance(state, Tensor) else tuple(map(function, state))
    )


def without_grad(state: Tensor) -> Tensor:
    with torch.no_grad():
        return state.clone()


CARRIED = {
    "detach": each(lambda state: state.detach()), "data": each(lambda state: state.data),
    "no_grad": each(without_grad), "numbers": each(lambda state: torch.tensor(state.tolist())),
    "clone": each(lambda state: state.detach().clone()),
}  # fmt: skip
"""Ways to carry a state of which none needs its graph."""


def train(
    kind: str,
    carried: Callable[[Any], Any],
    *,
    after: Callable[[int, nn.Module, Any, Tensor], Any] = lambda *_: None,
    wait: Callable[[], object] = lambda: None,
) -> list[Any]:
    """Train, and return losses, states, and what `after` returns behind each backward."""
    torch.manual_seed(0)
    model = Carrying(kind)
    optimizer = optim.SGD(model.parameters(), 0.1)
    state, found = first_state(kind), []
    for step in range(NUM_STEPS):
        x, y = torch.randn(3, 6, 4), torch.randint(5, (18,))
        state = carried(state)
        optimizer.zero_grad()
        out, state, side = model(x, state)
        loss = F.cross_entropy(out, y)
        loss.backward()
        found.append(after(step, model, state, side))
        optimizer.step()
        found += [loss.item(), *(state if isinstance(state, tuple) else (state,))]
        wait()
    return [value.detach() if isinstance(value, Tensor) else value for value in found]


def recorded(*args: Any, **options: Any) -> tuple[list[Any], Recorder]:
    with recorded_steps() as steps:
        return train(*args, **options, wait=steps.recorder.wait), steps.recorder


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
@pytest.mark.parametrize("way", CARRIED)
def test_states_are_carried_as_without_recording(way: str, kind: str) -> None:
    found, recorder = recorded(kind, CARRIED[way])
    assert_same(found, train(kind, CARRIED[way]))
    assert recorder.num_compiled > NUM_STEPS // 2, recorder.end_reason


def side_backward(step: int, model: nn.Module, _: Any, side: Tensor) -> Any:
    """Take gradients of another result; return that of a weight."""
    if step >= side_backward.first:  # type: ignore[attr-defined]
        side.square().mean().backward()  # type: ignore[no-untyped-call]
    return model.side.weight.grad  # type: ignore[union-attr]


def look(_: int, __: nn.Module, state: Any, side: Tensor) -> Any:
    """Look at what a graph is needed for."""
    return [side.grad_fn is not None, state.requires_grad, (side * 2).requires_grad]


@pytest.mark.parametrize("after", [side_backward, look])
def test_a_graph_that_is_used_from_the_beginning_is_left_to_torch(
    after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_backward, "first", 0, raising=False)
    found, recorder = recorded("GRU", CARRIED["detach"], after=after)
    assert_same(found, train("GRU", CARRIED["detach"], after=after))
    assert not recorder.num_compiled


def first_of_two_backward(_: int, model: nn.Module, __: Any, side: Tensor) -> Any:
    """Take gradients of one of two results that one function has returned."""
    return torch.autograd.grad(side[0].sum(), model.side.weight)[0]  # type: ignore[union-attr]


class ReturnsTwo(Carrying):
    def forward(self, x: Tensor, state: Any) -> Any:
        out, state, side = super().forward(x, state)
        return out, state, side.chunk(2)


def test_results_of_one_function_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "Carrying", ReturnsTwo)
    found, recorder = recorded("GRU", CARRIED["detach"], after=first_of_two_backward)
    assert_same(found, train("GRU", CARRIED["detach"], after=first_of_two_backward))
    assert not recorder.num_compiled


def test_a_graph_that_is_used_only_later_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_backward, "first", NUM_STEPS // 2, raising=False)
    with pytest.raises(RuntimeError, match="computed it without its graph"):
        recorded("GRU", CARRIED["detach"], after=side_backward)


def test_a_state_with_its_graph_is_torchs_error() -> None:
    with pytest.raises(RuntimeError, match="a second time"):
        recorded("GRU", lambda state: state)
