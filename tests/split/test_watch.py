"""The watch finds what changes a model after its proof, and what no key of the model's can see."""

from __future__ import annotations

import copy
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from cputrain import Split
from cputrain.split.proof import watch

SETTINGS = SimpleNamespace(mixes=False)


def helper(h):
    return h


def mixing(h):
    return h - h.mean(0)


class Plan:
    """Not a module: neither its class nor what its class has is part of a key."""

    options = SimpleNamespace(mixes=False)

    def apply(self, h):
        return h - h.mean(0) if self.options.mixes else h


def switched():
    """Return a function with a closure, and what sets a variable in it."""
    is_mixing = False

    def mix(h):
        return h - h.mean(0) if is_mixing else h

    def switch():
        nonlocal is_mixing
        is_mixing = True

    return mix, switch


def with_default(h, seen=[False]):  # noqa: B006
    return h - h.mean(0) if seen[0] else h


class Model(nn.Module):
    def __init__(self, path: Path) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.table, self.raw, self.plan = np.zeros(3), bytearray(1), Plan()
        self.path = str(path)

    def forward(self, x):
        h = helper(F.relu(self.first(x)))
        h = with_default(self.plan.apply(self.switched(h)))
        if (
            SETTINGS.mixes or self.table[1] or self.raw[0] or os.environ.get("ZOO_MIXES")
            or os.path.exists(self.path)
        ):  # fmt: skip
            h = mixing(h)
        return self.last(h)


HERE = sys.modules[__name__]
FAULTS = {
    "a global object": lambda patch, _: patch.setattr(SETTINGS, "mixes", True),
    "a function of the script's module": lambda patch, _: patch.setattr(HERE, "helper", mixing),
    "a function of torch": lambda patch, _: patch.setattr(F, "relu", mixing),
    "a variable in a closure": lambda _, model: model.switch(),
    "a default argument": lambda patch, _: patch.setattr(with_default, "__defaults__", ([True],)),
    "a table of NumPy": lambda _, model: model.table.__setitem__(1, 1.0),
    "bytes": lambda _, model: model.raw.__setitem__(0, 1),
    "a method of a class that is no module": lambda patch, _: patch.setattr(
        Plan, "apply", lambda _, h: mixing(h)
    ),
    "an attribute of such a class": lambda patch, _: patch.setattr(Plan.options, "mixes", True),
    "a variable of the environment": lambda patch, _: patch.setenv("ZOO_MIXES", "1"),
    "a file": lambda _, model: Path(model.path).touch(),
}


def trained(call, model, fault):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    losses = []
    for step in range(6):
        if step == 2:
            fault()
        optimizer.zero_grad()
        loss = call(torch.randn(12, 4, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.usefixtures("exactly")
def test_a_fault_that_is_planted_after_the_proof_is_found(fault, monkeypatch, tmp_path):
    monkeypatch.setattr(watch, "MAX_OVERHEAD", 1e9)
    monkeypatch.setattr(watch, "FIRST_PAUSE_S", 0.0)
    model = Model(tmp_path / "mixes")
    other = copy.deepcopy(model)
    for one in (model, other):
        one.switched, one.switch = switched()
    with monkeypatch.context() as patch:
        right = trained(other, other, lambda: FAULTS[fault](patch, other))
    (tmp_path / "mixes").unlink(missing_ok=True)
    split = Split(model, replicas=2)
    with pytest.warns(UserWarning, match="from call 3 on"), monkeypatch.context() as patch:
        found = trained(split, model, lambda: FAULTS[fault](patch, model))
    assert found == pytest.approx(right, rel=1e-9)
    assert "from call 3 on" in split.why_not
    assert split.calls_divided == 2
