"""`Split.verify` and `cputrain verify`: how far the parts are from the whole."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

from cputrain import Split
from cputrain.errors import UsageError


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3),
        nn.Flatten(), nn.Linear(4 * 36, 2),
    )  # fmt: skip


def test_every_tensor_is_compared_in_both_types_and_nothing_stays():
    model = convolutional()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    found = Split.verify(model, torch.randn(10, 3, 8, 8, generator=torch.Generator()), replicas=3)
    assert found.good
    assert found.refused == ""
    names = {(one.what, one.name) for one in found.differences}
    assert ("output", "") in names
    assert ("buffer", "1.running_mean") in names
    assert {name for what, name in names if what == "gradient"} == {
        name for name, _ in model.named_parameters()
    }
    exact, usual = found.worst("gradient")
    assert 0 <= exact <= 1e-12
    assert 0 < usual <= 1e-4
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    assert torch.equal(random, torch.get_rng_state())


def test_what_cannot_be_divided_is_told():
    class Centred(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = nn.Linear(3, 3)

        def forward(self, x):
            return self.inside(x) - self.inside(x).mean(0)

    found = Split.verify(Centred(), torch.randn(8, 3))
    assert not found.good
    assert "the operator mean in Centred" in found.refused


def test_one_part_has_nothing_to_be_compared_with():
    with pytest.raises(UsageError, match="2 or more"):
        Split.verify(nn.Linear(2, 2), torch.randn(8, 2), replicas=1)


TRAINS = """
import torch
from torch import nn
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1))
critic = {critic}
optimizer = torch.optim.Adam([*model.parameters(), *critic.parameters()])
for step in range(100):
    open("written", "w").close()
    loss = (critic(model(torch.randn(12, 5))) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("through")
"""


def verify(folder, program, *options):
    (folder / "train.py").write_text(program)
    return subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "verify", *options, "train.py"],
        cwd=folder, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_script_is_verified_on_its_own_steps(tmp_path):
    done = verify(tmp_path, TRAINS.format(critic="nn.Linear(1, 1)"), "--json", "--steps", "4")
    assert done.returncode == 0, done.stderr
    models = json.loads(done.stdout)["models"]
    assert [(one["model"], one["calls"], one["good"]) for one in models] == [
        ("Sequential", 4, True), ("Linear", 4, True),
    ]  # fmt: skip
    assert all(one["float64"] <= 1e-12 for model in models for one in model["differences"])
    assert not (tmp_path / "written").exists()


def test_a_model_that_cannot_be_divided_is_named_and_the_exit_code_says_so(tmp_path):
    forward = "{'forward': lambda self, x: x * self.weight - x.mean(0)}"
    critic = f"type('Centred', (nn.Linear,), {forward})(1, 1)"
    done = verify(tmp_path, TRAINS.format(critic=critic))
    assert done.returncode == 1, done.stderr
    assert "tensors are equal within rounding" in done.stdout
    assert "Centred: its batches are not sharded: the operator mean" in done.stdout


@pytest.mark.parametrize(
    ("program", "options", "says"),
    [
        ("print('nothing')", [], "no call of a model with gradients"),
        ("raise ValueError('mine')", [], "ValueError: mine"),
        ("", ["--replicas", "1"], "--replicas must be a whole number from 2"),
    ],
)
def test_what_goes_wrong_is_told_in_a_line(tmp_path, program, options, says):
    done = verify(tmp_path, program, *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr
