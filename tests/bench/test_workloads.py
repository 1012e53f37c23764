"""The workloads: found by listing the folder, and each says how fast it was."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from cputrain.bench import description, workloads
from tests.selected import some

SMALL = {
    "convnext": ["--image", "32", "--batch", "2"],
    "conv_loader": ["--image", "16", "--batch", "4", "--workers", "1"],
    "dlrm": ["--batch", "16", "--rows", "100"],
    "gan": ["--batch", "2", "--width", "4"],
    "gpt": ["--batch", "2", "--length", "16", "--width", "32"],
    "lstm": ["--batch", "2", "--length", "5", "--width", "16"],
    "mlp": ["--samples", "256", "--epochs", "1"],
    "mobilenet": ["--image", "32", "--batch", "2"],
    "resnet50": ["--image", "32", "--batch", "2"],
    "unet": ["--image", "16", "--batch", "2"],
    "vit": ["--image", "32", "--batch", "2", "--width", "24", "--layers", "2"],
    "wavenet": ["--length", "64", "--batch", "2", "--channels", "8", "--layers", "3"],
}
"""What makes a workload small beside `--steps 1`, which every one takes."""


@pytest.mark.parametrize("name", some(workloads(), 6))
def test_a_workload_ends_with_its_losses_and_times(name):
    ended = subprocess.run(
        [sys.executable, workloads()[name], "--steps", "1", *SMALL.get(name, [])],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    said = json.loads(ended.stdout.splitlines()[-1])
    assert sorted(said) == ["losses", "samples_per_step", "seconds_per_step"]
    assert len(said["losses"]) >= 2  # those of the warm-up too
    assert len(said["seconds_per_step"]) == 1
    assert said["samples_per_step"] > 0


@pytest.mark.parametrize("name", workloads())
def test_a_workload_describes_itself_in_one_line(name):
    assert 20 < len(description(workloads()[name])) <= 100


@pytest.mark.parametrize("name", workloads())
def test_a_workload_knows_nothing_of_cputrain(name):
    with open(workloads()[name], encoding="utf-8") as script:
        assert "cputrain" not in script.read()


def test_the_workloads_are_those_in_the_folder():
    assert {"mlp", "resnet50"} <= set(workloads())
    assert all(os.path.isfile(path) for path in workloads().values())


@pytest.mark.parametrize(("depth", "parameters"), [(18, 11_689_512), (50, 25_557_032)])
def test_a_resnet_has_the_parameters_it_is_known_for(depth, parameters):
    torch = pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("resnet50", workloads()["resnet50"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.device("meta"):
        model = module.resnet(depth, classes=1000)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


def test_the_comparison_loads_neither_torch_nor_dataclasses():
    code = "import sys, cputrain.bench; print({'torch', 'dataclasses'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
