"""Models on the device learn what they learn on the CPU, whoever made the optimizer when."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from torch import nn
from torch.nn import functional

import cputrain.opencl  # noqa: F401
from tests.split.models import MODELS

IDS = [
    *((kind, torch.optim.SGD, {"lr": 0.05, "momentum": 0.9})
      for kind in MODELS if kind != "noisy"),
    *(("resnet", kind, {"lr": 0.01}) for kind in (
        torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad,
    )),
]  # fmt: skip


def first_of(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize(("kind", "optimizer", "options"), IDS)
def test_it_learns_the_same(kind, optimizer, options):
    make, batch = MODELS[kind]
    model = make()
    for layer in model.modules():  # the numbers that are drawn there are others
        for name in ("p", "dropout"):
            if isinstance(getattr(layer, name, None), float):
                setattr(layer, name, 0.0)
    twin = copy.deepcopy(model)
    parameters = list(model.parameters())
    before = optimizer(parameters, **options)  # of before it is moved
    model.to("ocl")
    assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
    target = torch.randn_like(first_of(make()(batch(12))))
    batches = [batch(12) for _ in range(4)]
    curves = []
    for trained, updates, where in (
        (model, before, "ocl"), (twin, optimizer(twin.parameters(), **options), "cpu"),
    ):  # fmt: skip
        torch.manual_seed(2)
        losses = []
        for step in range(8):
            updates.zero_grad()
            loss = functional.mse_loss(
                first_of(trained(batches[step % 4].to(where))), target.to(where)
            )
            loss.backward()
            updates.step()
            losses.append(loss.item())
        curves.append(losses)
    assert curves[0] == pytest.approx(curves[1], rel=2e-4)
    if optimizer is not torch.optim.SGD:
        return  # a bias before a batch norm has a gradient of rounding, which these make large
    for one, other in zip(model.state_dict().values(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=2e-3, atol=2e-3)


def test_parameters_stay_who_they_are_there_and_back():
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4))
    model[2].weight = nn.Parameter(model[0].weight.detach().t().contiguous())
    model.add_module("tied", nn.Linear(4, 8))
    model.tied.weight = model[0].weight
    model[2].bias.requires_grad_(False)
    parameters = list(model.parameters())
    for where in ("ocl", "cpu", "ocl"):
        model.to(where)
        assert all(one is other for one, other in zip(parameters, model.parameters(), strict=True))
        assert {one.device.type for one in model.parameters()} == {where}
        assert {one.device.type for one in model.buffers()} == {where}
        assert model.tied.weight is model[0].weight
        assert not model[2].bias.requires_grad
    assert model.double()[0].weight.dtype == torch.float64
    assert not torch.__future__.get_swap_module_params_on_conversion()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("bias", [True, False])
def test_recurrent_networks(kind, bias):
    model = kind(4, 5, num_layers=2, bias=bias)
    there = copy.deepcopy(model).to("ocl")
    x = torch.randn(7, 3, 4)
    for one, where in ((model, "cpu"), (there, "ocl")):
        out, _ = one(x.to(where))
        (out * out.detach()).sum().backward()
    torch.testing.assert_close(there(x.to("ocl"))[0].cpu(), model(x)[0])
    for one, other in zip(there.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad, rtol=1e-4, atol=1e-5)


def test_a_whole_model_is_kept():
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).to("ocl")
    held = io.BytesIO()
    torch.save(model, held)
    held.seek(0)
    found = torch.load(held, weights_only=False)
    assert all(isinstance(one, nn.Parameter) for one in found.parameters())
    x = torch.randn(2, 2, 5, 5, device="ocl")
    torch.testing.assert_close(found.eval()(x).cpu(), model.eval()(x).cpu())


def test_checkpoints_of_one_are_read_by_the_other():
    model, other = nn.Linear(3, 2).to("ocl"), nn.Linear(3, 2)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.weight, model.weight.cpu())
    with torch.no_grad():
        other.weight.mul_(2)
    model.load_state_dict(other.state_dict())
    assert torch.equal(model.weight.cpu(), other.weight)
