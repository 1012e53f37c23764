"""Memory: what a run uses does not grow, and nothing is read that was let go of."""

from __future__ import annotations

import psutil
import pytest
import torch
from torch import nn
from torch.nn import functional

from cputrain.opencl.device import OPERATOR_SCOPE, Device

WARM_UP, STEPS = 60, 240


class Network(nn.Module):
    """Kernels, strided arguments, random numbers, and an operator that the CPU does."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8, 5)

    def forward(self, x):
        x = functional.max_pool2d(self.norm(self.conv(x)).relu(), 2)
        x = functional.dropout(x.flatten(2).transpose(1, 2), 0.1)
        return self.last(x.cumsum(1)[:, -1])


def test_no_memory_is_lost_in_many_steps(monkeypatch):
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", "needed")
    model = Network().to("ocl")
    steps = torch.optim.Adam(model.parameters(), lr=1e-3)
    images, targets = torch.randn(4, 3, 6, 6), torch.randint(5, (4, 3))
    weight = torch.rand(5, 2, device="ocl")[:, 0]
    used = []
    for step in range(WARM_UP + STEPS):
        if step in (WARM_UP, WARM_UP + STEPS - 1):
            stats = torch.ocl.memory_stats()
            used.append((stats["allocated"], stats["reserved"], psutil.Process().memory_info().rss))
        count = 4 - step % 3  # the last batches of epochs
        x, y = images[:count].to("ocl"), targets[:count].to("ocl")
        loss = functional.cross_entropy(model(x), y[:, 0], weight)
        steps.zero_grad()
        loss.backward()
        steps.step()
        del x, y, loss
    (allocated, reserved, resident), (later_allocated, later_reserved, later_resident) = used
    assert later_allocated == allocated
    assert later_reserved == reserved
    assert later_resident - resident < 16 << 20


@pytest.fixture
def poisoned(monkeypatch):
    monkeypatch.setattr(Device, "should_poison", True)


@pytest.mark.usefixtures("poisoned")
def test_what_is_let_go_of_is_nan_at_once():
    x = torch.ones(1000, device="ocl")
    view = x.memory
    buffer, host = view.buffer, view.host
    del x, view
    y = torch.empty(1000, device="ocl")
    assert y.memory.buffer is buffer
    assert host is y.memory.host
    assert y.isnan().all().item()


@pytest.mark.usefixtures("poisoned")
def test_memory_lives_until_the_outermost_operator_ends():
    """An operator that is made of others may still hold buffers of what they let go of."""
    kept = torch.ones(1000, device="ocl")
    buffer = kept.memory.buffer
    with OPERATOR_SCOPE:
        with OPERATOR_SCOPE:
            del kept
        other = torch.ones(1000, device="ocl")
        assert other.memory.buffer is not buffer
    assert torch.ones(1000, device="ocl").memory.buffer is buffer


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("fallback", ["needed", "choose"])
def test_a_step_is_the_same_where_what_is_free_is_nan(fallback, monkeypatch):
    """By kernels, by the CPU, recorded, and by what was recorded."""
    monkeypatch.setenv("CPUTRAIN_OCL_FALLBACK", fallback)
    monkeypatch.setattr(functional, "dropout", lambda x, _: x)
    model = Network()
    there = Network().to("ocl")
    there.load_state_dict(model.state_dict())
    x, y, weight = torch.randn(8, 3, 8, 8), torch.randint(5, (8, 3)), torch.rand(5, 2)
    losses = []
    for one, where in ((model, "cpu"), (there, "ocl")):
        steps = torch.optim.Adam(one.parameters(), lr=1e-2, foreach=where == "ocl")
        of_class = weight.to(where)[:, 1]
        found = []
        for step in range(6):
            out = one(x.to(where).transpose(2, 3))
            loss = functional.cross_entropy(
                out, y.to(where)[:, step % 3], of_class, reduction=("none", "mean")[step % 2]
            ).sum()
            steps.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(one.parameters(), 1.0)
            steps.step()
            found.append(loss.item())
        losses.append(found)
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
