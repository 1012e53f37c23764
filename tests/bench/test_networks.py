"""`cputrain bench networks`: torchvision's, on one device beside another."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cputrain.bench.networks import as_markdown
from cputrain.bench.networks.comparison import NetworkComparison, summarise
from cputrain.errors import NotFound, UsageError
from cputrain.launch.commands.bench import main
from tests.torchvision_folder import FOLDER, is_there


def printed(*words):
    """What a command prints that trains a network."""
    pytest.importorskip("pyopencl", reason="needs an OpenCL device")
    if not is_there():
        pytest.skip("needs torchvision's definitions")
    path = os.pathsep.join([str(FOLDER), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-P", "-m", *words],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
def test_what_it_takes_to_ask_for_a_call():
    found = printed(
        "cputrain.bench.networks.launch_latency",
        "--device=ocl",
        "--network=squeezenet1_0",
        "--side=32",
    )
    assert set(found["microseconds"]) == {"add", "relu", "add_", "add_ in a graph"}
    assert min(found["microseconds"].values()) > 0
    assert 0 < found["asked"] <= found["step"]


def test_a_network_is_trained_on_each_device():
    found = printed(
        "cputrain.launch", "bench", "networks", "squeezenet1_0",
        "--devices=ocl,cpu", "--quick", "--rounds=1", "--json",
    )  # fmt: skip
    assert (found["devices"], found["side"], found["rounds"]) == (["ocl", "cpu"], 64, 1)
    (result,) = found["results"]
    assert (result["name"], result["batch"]) == ("squeezenet1_0", 2)
    for side in result["sides"]:
        assert 0 < side["asked"] <= side["seconds"][0]
        assert side["loss_difference"] < 1e-5


def test_what_the_figures_amount_to():
    found = {
        "ocl": [{"seconds": [0.02, 0.03, 0.9], "asked": [0.01] * 3, "loss": 2.0},
                {"seconds": [0.04], "asked": [0.01], "loss": 3.0}],
        "cuda": [{"seconds": [0.03], "asked": [0.02], "loss": 2.5},
                 {"seconds": [0.01], "asked": [0.02], "loss": 2.5}],
    }  # fmt: skip
    result = summarise("resnet18", 32, found, ("ocl", "cuda"))
    ours, theirs = result.sides
    assert ours.seconds == (0.03, 0.04)
    assert (ours.speedup.median, ours.speedup.lowest, ours.speedup.highest) == (0.625, 0.25, 1.0)
    assert ours.loss_difference == pytest.approx(0.2)
    assert theirs.speedup.median == 1.0
    other = summarise("vgg16", 32, {name: one[:1] for name, one in found.items()}, ("ocl", "cuda"))
    comparison = NetworkComparison(
        rounds=2, side=224, devices=("ocl", "cuda"), names={"ocl": "a GPU", "cuda": "the same"},
        versions={"python": "3"}, results=(result, other),
    )  # fmt: skip
    assert comparison.mean("ocl") == pytest.approx(0.625**0.5)
    text = as_markdown(comparison, machine_line="a machine")
    assert "| resnet18, 32 | 35.0 ms | 20.0 ms | 0.62× (0.25 to 1.00) |" in text
    assert "ocl is a GPU, cuda is the same" in text
    assert "in geometric mean: ocl 0.79" in text


def test_what_is_not_there_is_told():
    with pytest.raises(NotFound, match="the network resnet19"):
        main(["networks", "resnet19"])
    with pytest.raises(UsageError, match="--batches must be a whole number"):
        main(["networks", "--batches", "many"])
    with pytest.raises(UsageError, match=r"--devices must be available; found .*nothing"):
        main(["networks", "--devices", "nothing,cpu", "--quick", "resnet18"])
