"""Models channels last, and what looks at the order of memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call, vmap
from torch.nn import functional

from cputrain.runtime.memory_order import patch_safetensors
from cputrain.settings import channels_last


class Net(nn.Module):
    """A convolution, with a view behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(functional.max_pool2d(torch.relu(self.conv(x)), 2))
        out: torch.Tensor = self.out(x.view(x.size(0), -1))
        return out


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))

LAST = torch.channels_last


def turned() -> Net:
    """A model that was laid out."""
    torch.manual_seed(0)
    net = Net()
    net(X)
    return net


def lies_last(net: Net) -> bool:
    return net.conv.weight.is_contiguous(memory_format=LAST)


def test_a_model_that_was_evaluated_first_can_be_trained(applied: Callable[..., Any]) -> None:
    found = applied(channels_last)
    net = Net()
    with torch.inference_mode():
        net(X)
    assert lies_last(net)
    net(X).sum().backward()
    torch.optim.SGD(net.parameters()).step()
    assert found.describe() == "1 convolution channels last"


def test_random_numbers_are_those_of_plain_python(applied: Callable[..., Any]) -> None:
    def drawn() -> list[torch.Tensor]:
        net = turned()
        hidden = net.conv(X)
        return [
            net(X),
            functional.dropout(hidden, 0.3),
            functional.dropout(hidden.clone(), 0.3, inplace=True),
            functional.dropout2d(hidden, 0.3),
            torch.randn_like(input=hidden),
            torch.rand_like(hidden, dtype=torch.float64),
            torch.rand(1),
        ]

    expected = drawn()
    applied(channels_last)
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(drawn(), expected, strict=True))


def test_writes_to_a_weight_through_a_view_are_not_lost(applied: Callable[..., Any]) -> None:
    found = applied(channels_last)
    net = turned()
    net(X).sum().backward()
    assert net.conv.weight.grad is not None
    net.conv.weight.grad.view(8, -1)[0] = 7
    assert net.conv.weight.grad[0].eq(7).all()
    net.conv.weight.data.view(-1)[:27] = 0
    assert net.conv.weight[0].eq(0).all()
    assert found.describe() == ""  # it was laid back
    net.conv.weight.detach().view(8, -1)[1] = 0
    assert net.conv.weight[1].eq(0).all()


def test_what_is_pickled_lies_as_plain_python_has_it(applied: Callable[..., Any]) -> None:
    found = applied(channels_last)
    net = turned()
    leaf = net.conv.weight.detach().requires_grad_()
    data, other = pickle.dumps(net), pickle.dumps(leaf)
    assert lies_last(net)
    found.undo()
    again = pickle.loads(data)
    assert again.conv.weight.is_contiguous()
    assert torch.equal(again.conv.weight, net.conv.weight)
    assert again(X).shape == (2, 5)  # a view is a view again
    assert pickle.loads(other).requires_grad
    applied(channels_last)


def test_safetensors_saves_what_was_laid_out(
    applied: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("save", "save_file"):
        monkeypatch.setattr(safetensors.torch, name, getattr(safetensors.torch, name))
    applied(channels_last)
    net = turned()
    with pytest.raises(ValueError, match="non contiguous"):
        safetensors.torch.save(net.state_dict())
    patch_safetensors(safetensors.torch)
    again = safetensors.torch.load(safetensors.torch.save(net.state_dict()))
    assert torch.equal(again["conv.weight"], net.conv.weight)
    with pytest.raises(ValueError, match="non contiguous"):
        safetensors.torch.save({"x": torch.ones(2, 3).t()})


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_models_that_torch_jit_reads_lie_as_they_did(applied: Callable[..., Any]) -> None:
    found = applied(channels_last)
    net = turned().eval()
    expected = net(X)
    for made in (torch.jit.trace(func=net, example_inputs=X), torch.jit.script(net)):
        assert torch.allclose(made(X), expected, atol=1e-5)
        assert net.conv.weight.is_contiguous()
    assert found.describe() == ""
    # in front of one, and around one
    front = nn.Conv2d(3, 3, 3, padding=1)
    scripted = torch.jit.script(net)
    assert scripted(front(X)).shape == (2, 5)
    assert lies_last_weight(front)
    whole = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), scripted)
    assert whole(X).shape == (2, 5)


def lies_last_weight(module: nn.Conv2d) -> bool:
    return module.weight.is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_fused_optimizers_of_the_script_walk_what_lies_alike(
    kind: Any, applied: Callable[..., Any]
) -> None:
    """torch's kernels look at no strides: an older state, and a gradient set by the script."""

    def trained() -> list[torch.Tensor]:
        torch.manual_seed(0)
        net = Net()
        options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        old = kind(net.parameters(), lr=0.01, **options)
        slopes = [torch.randn_like(p) for p in net.parameters()]
        for parameter, slope in zip(net.parameters(), slopes, strict=True):
            parameter.grad = slope.clone()
        old.step()
        net(X)
        new = kind(net.parameters(), lr=0.01, fused=True, **options)
        new.load_state_dict(old.state_dict())
        new.param_groups[0]["fused"] = True
        for _ in range(2):
            for parameter, slope in zip(net.parameters(), slopes, strict=True):
                parameter.grad = slope.clone()
            new.step()
        return [p.detach().clone() for p in net.parameters()]

    expected = trained()
    applied(channels_last)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(trained(), expected, strict=True))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_script_that_compiles_by_itself_has_its_weights_back(
    applied: Callable[..., Any],
) -> None:
    found = applied(channels_last)
    net = turned().eval()
    expected = net(X)
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(X), expected, atol=1e-5)
    assert found.describe() == ""
    assert turned().conv.weight.is_contiguous()


def test_models_that_others_look_into_are_left_alone(applied: Callable[..., Any]) -> None:
    applied(channels_last)
    net, other = Net().eval(), Net().eval()
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert net(torch.empty(2, 3, 8, 8)).shape == (2, 5)
    assert net.conv.weight.is_contiguous()
    values = {name: p.detach()[None] for name, p in other.named_parameters()}
    made = vmap(lambda p: functional_call(other, p, X))(values)
    assert torch.allclose(made[0], other(X), atol=1e-5)
    assert lies_last(other)
