"""A network trained to the end on real data is as good as under plain python, seeds apart."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean
from subprocess import CompletedProcess

import pytest

from cputrain.launch.planning import SITE_FOLDER
from tests.launch.programs import launch, plain

SCRIPT = str(Path(__file__).parents[2] / "examples" / "digits.py")
RUN = (SCRIPT, "--seeds", "5", "--epochs", "4")
BF16 = {
    "values": {"precision": "bf16", "fused_optimizer": True, "loader": True},
    "environment": {},
    "settings": {},
}
"""Carried as a launch carries it: a plan would refuse bf16 where the CPU only emulates it."""


def accuracies(done: CompletedProcess[str]) -> list[float]:
    """Of each seed."""
    assert done.returncode == 0, done.stderr
    found = re.findall(r"test accuracy ([\d.]+)", done.stdout)
    assert len(found) == 5
    return list(map(float, found))


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    found = accuracies(plain(tmp_path_factory.mktemp("python"), *RUN))
    assert min(found) > 0.95  # it does learn
    return found


def as_good(found: list[float], python: list[float]) -> bool:
    """Their mean is within the spread that seeds make."""
    return abs(mean(found) - mean(python)) <= max(python) - min(python)


@pytest.mark.long
def test_exact_plans_read_digits_as_well(tmp_path: Path, python: list[float]) -> None:
    done = launch(tmp_path, "--channels-last=on", "--loader=on", *RUN)
    assert "5 convolutions channels last" in done.stderr
    assert "fused AdamW" in done.stderr
    assert as_good(accuracies(done), python)


@pytest.mark.long
def test_a_compiled_network_reads_digits_as_well(tmp_path: Path, python: list[float]) -> None:
    done = launch(tmp_path, "--compile=on", *RUN)
    assert "5 models compiled" in done.stderr
    assert as_good(accuracies(done), python)


@pytest.mark.long
def test_bf16_reads_digits_as_well(tmp_path: Path, python: list[float]) -> None:
    done = plain(
        tmp_path, *RUN, PYTHONPATH=SITE_FOLDER, CPUTRAIN_PLAN=json.dumps(BF16), CPUTRAIN_REPORT="1"
    )
    assert "bf16 autocast around models" in done.stderr
    found = accuracies(done)
    assert found != python
    assert as_good(found, python)
