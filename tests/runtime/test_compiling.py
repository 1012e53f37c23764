"""Models that are compiled on the script's behalf, and those that had better not be."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from cputrain.settings import channels_last
from cputrain.settings import compile as compiling

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's compiler


def net_of(*more: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3), *more, nn.Linear(8, 1))


def trained(
    net: Any, steps: int = 4, *, backward: Callable[[torch.Tensor], object] = torch.Tensor.backward
) -> list[float]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(steps):
        loss = net(torch.randn(8, 4)).square().mean()
        optimizer.zero_grad()
        backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


class Mine(nn.Module):
    """With a method that has the name of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net_of()

    def compile(self, optimizer: str) -> str:
        return optimizer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.net(x)
        return made


@pytest.mark.long
@pytest.mark.parametrize("make", [net_of, Mine])
def test_models_are_compiled_after_their_first_step(
    make: Callable[[], nn.Module], applied: Callable[..., Any]
) -> None:
    expected = trained(make())
    found = applied(compiling)
    assert trained(make(), 1) == pytest.approx(expected[:1])
    assert found.describe() == ""
    net = make()
    before = set(vars(net))
    assert trained(net) == pytest.approx(expected, rel=1e-4)
    assert found.describe() == "1 model compiled"
    assert set(vars(net)) == before
    assert pickle.loads(pickle.dumps(net))(torch.ones(1, 4)).shape == (1, 1)
    traced = torch.jit.trace(net.eval(), torch.ones(1, 4))
    assert torch.allclose(traced(torch.ones(1, 4)), net(torch.ones(1, 4)))


@pytest.mark.long
def test_a_graph_that_is_gone_through_twice_is_compiled_for_that(
    applied: Callable[..., Any],
) -> None:
    def twice(loss: torch.Tensor) -> None:
        loss.backward(retain_graph=True)
        loss.backward()

    expected = trained(net_of(nn.Sigmoid()), backward=twice)
    found = applied(compiling)
    assert trained(net_of(nn.Sigmoid()), backward=twice) == pytest.approx(expected, rel=1e-4)
    assert found.describe() == "1 model compiled"


def test_what_is_differentiated_twice_is_not_compiled(applied: Callable[..., Any]) -> None:
    def penalized(loss: torch.Tensor) -> None:
        loss.backward(create_graph=True)

    found = applied(compiling)
    with pytest.warns(UserWarning, match="create_graph"):
        trained(net_of(), backward=penalized)
    trained(net_of())
    assert found.describe() == ("models left uncompiled: the script differentiates gradients again")


def test_what_writes_to_its_own_tensors_is_not_compiled(applied: Callable[..., Any]) -> None:
    """Inductor would compute the gradients of spectral_norm from what it has written."""
    found = applied(compiling)
    net = net_of(parametrizations.spectral_norm(nn.Linear(8, 8)))
    trained(net)
    assert "Sequential left uncompiled: its forward writes to its own tensors" in found.describe()


def test_evaluation_and_torch_func_are_not_compiled(applied: Callable[..., Any]) -> None:
    found = applied(compiling)
    net = net_of()
    trained(net, 1)
    with torch.no_grad():
        net(torch.ones(1, 4))
    torch.func.grad(lambda x: net(x).sum())(torch.ones(1, 4))
    with torch.autograd.graph.save_on_cpu():
        net(torch.ones(1, 4)).sum().backward()
    assert found.describe() == ""


def test_what_the_script_compiled_is_left_to_it(applied: Callable[..., Any]) -> None:
    found = applied(compiling)
    part = nn.Sequential(torch.compile(nn.Linear(4, 4), backend="eager"), nn.Linear(4, 1))
    trained(part)
    in_place = net_of()
    in_place.compile(backend="eager")
    trained(in_place)
    assert found.describe() == "Sequential left uncompiled: the script compiles it"


def test_the_script_compiles_a_models_own_call(applied: Callable[..., Any]) -> None:
    """The hooks of a compiled model run outside of what is compiled; so they do with ours."""
    applied(channels_last)
    net, seen = Mine(), []
    net.register_forward_hook(lambda *found: seen.append(found[-1].sum().item()))
    whole = torch.compile(net, backend="eager", fullgraph=True)
    assert seen == []
    made = whole(torch.ones(1, 4))
    assert seen == [made.sum().item()]
