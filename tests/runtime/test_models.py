"""Models under a plan: laid out, compiled, with fewer bits; and scripts that do not notice."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from cputrain.runtime.root_forward import root_forward_of
from cputrain.settings import attention, channels_last, precision
from tests.launch.programs import launch, script

Pair = namedtuple("Pair", "one other")


@dataclass(frozen=True)
class Output:
    """As models of transformers return."""

    logits: torch.Tensor
    hidden: tuple[Any, ...] = ()


class Bag(dict[str, Any]):
    """As models of other libraries do."""


class Net(nn.Module):
    """Convolutions, and a view behind them as many scripts write it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.out = nn.Linear(8 * 4 * 4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.max_pool2d(torch.relu(self.norm(self.conv(x))), 2)
        out: torch.Tensor = self.out(x.view(x.size(0), -1))
        return out


def trained(steps: int = 6) -> tuple[Net, list[float]]:
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    losses = []
    for _ in range(steps):
        x, y = torch.randn(4, 3, 8, 8), torch.randint(5, (4,))
        loss = functional.cross_entropy(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return net, losses


# the outermost call


def test_calls_of_whole_models_are_heard_of_and_those_within_are_not() -> None:
    heard: list[Any] = []

    def around(call: Callable[..., Any], model: Any, /, *args: Any, **options: Any) -> Any:
        heard.append(model)
        return call(model, *args, **options)

    inner, failing = nn.Linear(2, 2), nn.Linear(3, 3)
    model = nn.Sequential(inner, nn.Sequential(nn.ReLU()))
    found = root_forward_of(torch)
    found.add(around)
    try:
        model(torch.ones(1, 2))
        inner(torch.ones(1, 2))
        with pytest.raises(RuntimeError):
            failing(torch.ones(1, 2))
        model(torch.ones(1, 2))  # after an error, too
        with torch.no_grad():
            model.eval()(torch.ones(1, 2))
        thread = threading.Thread(target=lambda: inner(torch.ones(1, 2)))
        thread.start()
        thread.join()
    finally:
        found.remove(around)
    assert heard == [model, inner, failing, model, model, inner]


def test_what_is_added_first_is_around_what_is_added_later() -> None:
    heard: list[str] = []
    found = root_forward_of(torch)

    def saying(word: str) -> Callable[..., Any]:
        def around(call: Callable[..., Any], model: Any, /, *args: Any) -> Any:
            heard.append(word)
            return call(model, *args)

        return around

    arounds = [saying("first"), saying("second")]
    for around in arounds:
        found.add(around)
    nn.ReLU()(torch.ones(1))
    for around in arounds:
        found.remove(around)
    nn.ReLU()(torch.ones(1))
    assert heard == ["first", "second"]


# channels last


def test_convolutions_are_laid_out_channels_last_and_learn_the_same(
    applied: Callable[..., Any],
) -> None:
    _, expected = trained()
    found = applied(channels_last)
    assert found.describe() == ""
    net, losses = trained()
    assert losses == pytest.approx(expected, rel=1e-4)
    assert net.conv.weight.is_contiguous(memory_format=torch.channels_last)
    assert net.conv.weight.grad is not None
    assert net.conv.weight.grad.stride() == net.conv.weight.stride()
    assert found.describe() == "1 convolution channels last"


def test_a_model_that_was_laid_out_is_saved_copied_and_loaded_as_ever(
    applied: Callable[..., Any],
) -> None:
    plain, _ = trained()
    applied(channels_last)
    net, _ = trained()
    assert vars(net).keys() == vars(plain).keys()
    assert list(net.state_dict()) == list(plain.state_dict())
    x = torch.randn(2, 3, 8, 8)
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.allclose(other(x), net(x), atol=1e-6)
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    fresh = Net()
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(fresh.conv.weight, net.conv.weight)


def test_a_view_that_is_wrong_is_wrong_still(applied: Callable[..., Any]) -> None:
    applied(channels_last)
    trained(1)
    trained(1)
    with pytest.raises(RuntimeError, match="invalid for input of size 6"):
        torch.ones(2, 3).view(4, 2)
    with pytest.raises(RuntimeError, match="invalid"):
        torch.ones(2, 3).t().view(4, 2)
    turned = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    assert torch.equal(turned.view(2, -1), turned.reshape(2, -1))
    base = torch.zeros(2, 3)
    base.view(-1)[0] = 1  # what is a view stays one
    assert base[0, 0] == 1


def test_weights_that_others_look_at_stay_where_they_are(applied: Callable[..., Any]) -> None:
    applied(channels_last)
    flat = torch.randn(2 * 3 * 3 * 3 + 2)
    within, shared, half = nn.Conv2d(3, 2, 3), nn.Conv2d(3, 2, 3), nn.Conv2d(3, 2, 3)
    within.weight.data = flat[: 2 * 27].view(2, 3, 3, 3)
    shared.share_memory()
    model = nn.Sequential(within, shared, nn.Conv2d(2, 2, 1))
    x = torch.randn(1, 3, 5, 5)
    within(x)
    shared(x)
    half.requires_grad_(requires_grad=False)(x)
    assert within.weight.data_ptr() == flat.data_ptr()
    assert shared.weight.is_shared()
    assert half.weight.is_contiguous(memory_format=torch.channels_last)
    assert len(model) == 3


# fewer bits


def test_autocast_is_within_the_model_and_its_results_are_float32(
    applied: Callable[..., Any],
) -> None:
    _, expected = trained()
    found = applied(precision, "bf16")
    net, losses = trained()
    assert losses != expected
    assert losses == pytest.approx(expected, rel=0.1)
    assert net.out.weight.dtype is torch.float32
    assert not torch.is_autocast_enabled("cpu")
    assert found.describe() == "bf16 autocast around models"


class Various(nn.Module):
    """Returns its parts in containers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor | None = None) -> Any:
        if x is None:
            return {"weight": self.linear.weight.sum()}
        y = self.linear(x)
        if len(x) == 1:
            return Output(y, (Bag(a=y), SimpleNamespace(b=y)))
        return {"pair": Pair(y, [y.argmax(), None]), "within": str(y.dtype)}


def test_what_a_model_returns_is_widened_in_whatever_it_lies(applied: Callable[..., Any]) -> None:
    applied(precision, "bf16")
    model = Various()
    made = model(torch.randn(2, 4))
    assert made["within"] == "torch.bfloat16"
    assert isinstance(made["pair"], Pair)
    assert made["pair"].one.dtype is torch.float32
    assert made["pair"].other[0].dtype is torch.int64
    assert model()["weight"].dtype is torch.float32
    with torch.no_grad():
        assert model.eval()(x=torch.randn(2, 4))["pair"].one.dtype is torch.float32
    other = model(torch.randn(1, 4))
    assert (type(other), type(other.hidden[0])) == (Output, Bag)
    for tensor in (other.logits, other.hidden[0]["a"], other.hidden[1].b):
        assert tensor.dtype is torch.float32


def test_what_has_nothing_to_widen_is_the_very_same(applied: Callable[..., Any]) -> None:
    kept = {"state": [torch.ones(1), Bag(a=1)]}

    class Keeping(nn.Linear):
        def forward(self, _: torch.Tensor) -> Any:
            return kept

    applied(precision, "bf16")
    assert Keeping(1, 1)(torch.ones(1)) is kept


def test_a_script_with_its_own_precision_keeps_it(applied: Callable[..., Any]) -> None:
    found = applied(precision, "bf16")
    double, model = nn.Linear(2, 2).double(), nn.Linear(2, 2)
    assert double(torch.ones(1, 2, dtype=torch.float64)).dtype is torch.float64
    with torch.autocast("cpu", torch.bfloat16):
        assert model(torch.ones(1, 2)).dtype is torch.bfloat16
    assert nn.ReLU()(torch.ones(1, dtype=torch.bfloat16)).dtype is torch.bfloat16
    assert found.describe() == "Linear left without autocast: its parameters are torch.float64"


def test_an_update_is_seen_by_the_next_call(applied: Callable[..., Any]) -> None:
    """Autocast keeps casted weights; a kept one that is stale would be a silent fault."""
    applied(precision, "bf16")
    model = nn.Linear(8, 8)
    x = torch.randn(1, 8)
    before = model(x)
    with torch.no_grad():
        model.weight.mul_(3)
        model.bias.mul_(3)
    assert torch.allclose(model(x), 3 * before, rtol=0.02, atol=0.02)


def test_two_models_that_learn_from_each_other(applied: Callable[..., Any]) -> None:
    for setting, value in ((channels_last, True), (precision, "bf16")):
        applied(setting, value)
    torch.manual_seed(0)
    maker = nn.Sequential(nn.Linear(4, 3 * 64), nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, 3, 1))
    judge = Net()
    optimizers = [torch.optim.Adam(net.parameters(), lr=0.01) for net in (maker, judge)]
    for _ in range(3):
        made = maker(torch.randn(4, 4))
        mixed = made.detach().requires_grad_()
        (slope,) = torch.autograd.grad(judge(mixed).sum(), mixed, create_graph=True)
        (judge(made.detach()).mean() + slope.square().mean()).backward()
        optimizers[1].step()
        judge(made).mean().backward()
        optimizers[0].step()
    assert all(torch.isfinite(p).all() for net in (maker, judge) for p in net.parameters())


def test_kernels_with_fewer_bits_are_told_and_put_back(applied: Callable[..., Any]) -> None:
    before = torch.backends.mkldnn.matmul.fp32_precision
    found = precision.SETTING.apply(torch, "kernels")
    assert found is not None
    assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
    assert torch.backends.mkldnn.conv.fp32_precision == "bf16"
    assert found.describe() == "bf16 inside matmuls and convolutions"
    found.undo()
    assert torch.backends.mkldnn.matmul.fp32_precision == before


# attention


def test_attention_by_matmuls_is_the_same_and_put_back() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    expected = functional.scaled_dot_product_attention(q, k, v)
    found = attention.SETTING.apply(torch, "math")
    assert found is not None
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert torch.allclose(functional.scaled_dot_product_attention(q, k, v), expected, atol=1e-6)
    found.undo()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_attention_in_float32_within_autocast(applied: Callable[..., Any]) -> None:
    found = applied(attention, "float32")
    q, k, v = torch.randn(3, 1, 2, 5, 4).unbind()
    mask = torch.zeros(5, 5, dtype=torch.bfloat16)
    assert functional.scaled_dot_product_attention(q, k, v).dtype is torch.float32
    assert found.describe() == ""
    halves = [one.bfloat16() for one in (q, k, v)]
    made = functional.scaled_dot_product_attention(*halves, mask, 0.0, is_causal=False)
    expected = functional.scaled_dot_product_attention(*(one.float() for one in halves))
    assert made.dtype is torch.bfloat16
    assert torch.equal(made, expected.bfloat16())
    assert found.describe() == "attention in float32"


class Attending(nn.Module):
    """For torch.jit.script, which reads it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_jit_finds_the_operator_that_was_exchanged(applied: Callable[..., Any]) -> None:
    applied(attention, "float32")
    x = torch.randn(1, 2, 5, 4)
    assert torch.allclose(torch.jit.script(Attending())(x), Attending()(x), atol=1e-6)


# from the command line

TRAINS = """
import torch
from torch import nn
net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 2))
net(torch.randn(2, 3, 8, 8)).sum().backward()
print("float32", net(torch.randn(2, 3, 8, 8)).dtype)
"""


def test_each_setting_reaches_the_script_and_is_told(tmp_path: Path) -> None:
    path = script(tmp_path, TRAINS)
    done = launch(tmp_path, "--channels-last=on", "--attention=math", path)
    assert done.returncode == 0, done.stderr
    assert "1 convolution channels last, attention by plain matmuls" in done.stderr
    assert done.stdout == "float32 torch.float32\n"
