"""`--replicas`: an unmodified script, its batches divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.programs import launch, plain, script

TRAINS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 4))
loss_of = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x, y = torch.randn(96, 16), torch.randint(4, (96,))
for step in range({steps}):
    optimizer.zero_grad()
    loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
    print(f"{{loss.item():.4f}}")
model.eval()
with torch.no_grad():
    print(f"{{loss_of(model(x), y).item():.4f}}")
"""


def losses(out: str) -> list[float]:
    return [float(line) for line in out.split()]


def test_a_script_learns_the_same_with_its_batches_divided(tmp_path: Path) -> None:
    script(tmp_path, TRAINS.format(steps=20))
    right = plain(tmp_path, "x.py")
    done = launch(tmp_path, "--replicas", "2", "x.py")
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(losses(right.stdout), rel=2e-4, abs=2e-4)
    assert "batches of 1 model divided among 2 replicas" in done.stderr
    assert "undivided" not in done.stderr


def test_auto_measures_on_the_scripts_own_steps(tmp_path: Path) -> None:
    script(tmp_path, TRAINS.format(steps=40))
    right = plain(tmp_path, "x.py")
    done = launch(tmp_path, "--replicas", "auto", "x.py")
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(losses(right.stdout), rel=2e-4, abs=2e-4)
    assert "of 1 model undivided: that is fastest" in done.stderr or (
        "of 1 model divided among" in done.stderr
    )


def test_why_a_model_is_not_divided_is_told_at_the_end(tmp_path: Path) -> None:
    script(
        tmp_path,
        TRAINS.format(steps=4).replace(
            "loss_of = ", "model.register_forward_hook(lambda *_: None)\nloss_of = "
        ),
    )
    done = launch(tmp_path, "--replicas", "2", "x.py")
    assert done.returncode == 0, done.stderr
    assert "batches of Sequential undivided: the model (Sequential) has a hook" in done.stderr
    assert "divided among" not in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_fails_in_parts_alone_goes_on_whole(tmp_path: Path) -> None:
    """It draws more often from its third step on, which nothing could know before."""
    program = TRAINS.format(steps=8).replace(
        "loss_of = nn",
        "from types import SimpleNamespace\n"
        "state = SimpleNamespace(steps=0)\n"
        "class Changes(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inside = model_of_before\n"
        "    def forward(self, x):\n"
        "        for _ in range(1 if state.steps < 3 else 2):\n"
        "            x = x + 0.1 * torch.rand_like(x)\n"
        "        return self.inside(x)\n"
        "model_of_before = model\n"
        "model = Changes()\n"
        "loss_of = nn",
        1,
    )
    program = program.replace("    optimizer.step()", "    optimizer.step(); state.steps += 1")
    script(tmp_path, program)
    right = plain(tmp_path, "x.py")
    done = launch(tmp_path, "--replicas", "2", "x.py")
    assert done.returncode == 0, done.stderr
    assert losses(done.stdout) == pytest.approx(losses(right.stdout), rel=2e-3, abs=2e-3)
    assert "undivided in others: PartsDiffer" in done.stderr


def test_the_scripts_own_error_is_its_own(tmp_path: Path) -> None:
    program = TRAINS.format(steps=4).replace(
        "loss = loss_of", "x = x[:, : 16 - step // 2]; loss = loss_of"
    )
    script(tmp_path, program)
    right = plain(tmp_path, "x.py")
    done = launch(tmp_path, "--replicas", "2", "x.py")
    assert (done.returncode, done.stdout) == (right.returncode, right.stdout) == (1, done.stdout)
    assert "mat1 and mat2 shapes cannot be multiplied (96x15 and 16x32)" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--replicas", "0"), "--replicas must be auto or a whole number from 1 to"),
        (("--replicas", "many"), "found 'many'"),
        (("--replicas", "2", "--compile", "on"), "does not go with compiled models"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, words: tuple[str, ...], says: str) -> None:
    script(tmp_path, "")
    done = launch(tmp_path, *words, "x.py")
    assert done.returncode == 2
    assert says in done.stderr


def test_a_split_of_the_scripts_own_is_not_divided_again(tmp_path: Path) -> None:
    program = TRAINS.format(steps=5).replace(
        "loss_of = ", "from cputrain import Split\nmodel = Split(model, replicas=3)\nloss_of = "
    )
    script(tmp_path, program + "print(model.calls_divided)\n")
    done = launch(tmp_path, "--replicas", "2", "x.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "6"
