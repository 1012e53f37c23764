"""`cputrain bench devices`: every kind of model, on the CPU and on a stand-in beside it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cputrain.bench.devices import CASES
from cputrain.bench.devices.cases import cases
from cputrain.bench.devices.comparison import summarise
from cputrain.bench.devices.tables import case_table
from cputrain.errors import NotFound, UsageError
from cputrain.launch.commands.bench import main

ROOT = Path(__file__).parents[2]


def bench(folder, *arguments):
    """In processes that have a device named "other", and no tensors from ours."""
    (folder / "sitecustomize.py").write_text(
        "from tests.split import other_device\nother_device.begin()\n"
    )
    path = os.pathsep.join([str(folder), str(ROOT)])
    return subprocess.run(
        [sys.executable, "-P", "-m", "cputrain.launch", "bench", "devices", *arguments],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip


@pytest.mark.parametrize(
    "kinds", [["mlp"], *(pytest.param(kinds, marks=pytest.mark.long) for kinds in (["conv"], []))]
)
@pytest.mark.long
def test_each_kind_is_trained_in_every_way(tmp_path, kinds):
    """Without a kind: all of them."""
    done = bench(tmp_path, *kinds, "--devices=cpu,other", "--rounds=1", "--quick", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["schema_version"], found["devices"]) == (1, ["cpu", "other"])
    assert [case["name"].partition("-")[0] for case in found["cases"]] == (kinds or list(CASES))
    for case in found["cases"]:
        assert [side["name"] for side in case["sides"]] == ["cpu", "other", "split"]
        assert all(side["loss_difference"] < 1e-4 for side in case["sides"])
        assert case["why_not"] == ""
        assert sum(case["shares"].values()) == case["batch"]
        assert case["of_the_sum"] > 0


@pytest.mark.long
def test_a_batch_of_another_size(tmp_path):
    done = bench(
        tmp_path, "mlp", "--devices=cpu,other", "--rounds=1", "--batch=24", "--quick", "--json"
    )
    assert done.returncode == 0, done.stderr
    (case,) = json.loads(done.stdout)["cases"]
    assert case["batch"] == sum(case["shares"].values()) == 24


def test_what_the_figures_amount_to():
    (case,) = cases("mlp", quick=True)
    seconds = {"cuda": [0.01, 0.01, 0.02], "cpu": [0.02, 0.02, 0.04], "split": [0.008, 0.008, 0.01]}
    losses = {"cuda": 0.0, "cpu": 1e-7, "split": 2e-7}
    found = summarise(
        case,
        {"seconds": seconds, "shares": {"cuda": 43, "cpu": 21}, "why_not": "", "losses": losses},
    )
    split = found.sides[-1]
    assert (split.speedup.median, split.speedup.highest) == (1.25, 2.0)
    assert found.of_the_sum == pytest.approx((1 / 0.008) / (1 / 0.01 + 1 / 0.02))
    head, rows = case_table(found)
    assert head[0] == ""
    assert rows[-1][-2:] == ("43 on cuda, 21 on cpu", "2.0e-07")


@pytest.mark.parametrize(
    ("devices", "says"), [("nowhere,cpu", "'nowhere'"), ("cpu", "two or more devices")]
)
def test_what_is_no_device_is_told(devices, says):
    with pytest.raises(UsageError, match=says):
        main(["devices", "--devices", devices, "--quick", "mlp"])


def test_a_batch_is_a_number_of_samples():
    with pytest.raises(UsageError, match="--batch"):
        main(["devices", "--devices", "cpu,other", "--batch", "none", "mlp"])


def test_a_case_that_is_not_there_is_told():
    with pytest.raises(NotFound, match="mlp-64"):
        main(["devices", "--devices", "cpu,other", "mlp-63"])
