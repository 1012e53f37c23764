"""The least time of a step, and commands that compare steps with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cputrain.diagnose.step_roof import OperatorGap, StepRoof, step_roof
from tests.diagnose.samples import ROOF, operator, seen

TRAINS = """
import json, time, torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, losses, seconds = torch.ones(512, 64), [], []
for step in range(40):
    begin = time.perf_counter()
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    seconds.append(time.perf_counter() - begin)
print(json.dumps({"losses": losses, "seconds_per_step": seconds}))
"""


def test_products_and_tensors_are_added_up() -> None:
    profile = seen(
        operator("mm", flops=4e9, bytes=1e6),
        operator("mm", flops=16e9, dtype="bfloat16"),
        operator("mul", bytes=8e9),
        tensor_bytes=4e9,
    )
    roof = step_roof(profile, ROOF.replace(cache_bytes={"l2": 0.0, "l3": 0.0}))
    assert roof.product_seconds == pytest.approx(0.01 + 0.01)
    assert roof.memory_seconds == pytest.approx(0.1)
    assert roof.share(0.24) == pytest.approx(0.5)
    assert roof.share(0.1) == 1.0


def test_operators_that_lose_most_are_named() -> None:
    profile = seen(
        operator("mm", calls=2, seconds=0.05, flops=4e9),
        operator("mm", seconds=0.05, flops=4e9),
        operator("mul", calls=4, seconds=0.01),
        operator("add", seconds=1e-6),
        step=0.2,
    )
    gaps = step_roof(profile, ROOF).gaps
    assert [(gap.name, gap.calls) for gap in gaps] == [("mm", 3), ("mul", 4)]
    assert gaps[0].share == pytest.approx((0.1 - 0.02) / 0.2)
    assert gaps[1].share == pytest.approx(0.01 / 0.2)


def test_operators_of_a_disturbed_step_lose_no_more_than_the_step() -> None:
    profile = seen(operator("mm", seconds=0.3, flops=4e9), operator("mul", seconds=0.1), step=0.2)
    gaps = step_roof(profile, ROOF).gaps
    assert gaps[0].share == pytest.approx((0.3 - 0.004) / 0.4, rel=0.05)
    assert sum(gap.share for gap in gaps) < 1


def test_what_caches_hold_is_moved_faster() -> None:
    profile = seen(tensor_bytes=4e6)
    fits, none = (
        step_roof(profile, ROOF.replace(cache_bytes={"l2": size, "l3": 0.0})) for size in (1e6, 0.0)
    )
    assert fits.memory_seconds == pytest.approx(none.memory_seconds / 4)


@pytest.mark.alone
@pytest.mark.long
def test_a_comparison_has_the_roof(tmp_path: Path, roof_cache: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "bench", "--repeats=1", "--roof", "--json",
         "train.py"],
        cwd=tmp_path, env={**os.environ, "XDG_CACHE_HOME": str(roof_cache)},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (comparison,) = json.loads(done.stdout)["comparisons"]
    document = comparison["roof"]
    roof = StepRoof(
        **document
        | {"rough": tuple(document["rough"])}
        | {"gaps": tuple(OperatorGap(**gap) for gap in document["gaps"])}
    )
    python = next(side for side in comparison["sides"] if side["name"] == "python")
    # products of 512 x 64 x 256 and 512 x 256 x 8, but for the gradient of the input
    flops = 2 * 512 * 256 * (2 * 64 + 3 * 8)
    assert flops / 20e12 < roof.product_seconds < flops / 1e9
    assert 0 < roof.memory_seconds < python["median"]
    assert all(0 < gap.share < 1 for gap in roof.gaps)
