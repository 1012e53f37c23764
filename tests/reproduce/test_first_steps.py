"""`verify --reproducible` and `--against`: stamps of the first steps on two machines."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import VERB, run, script

TRAINING = """
import sys, torch
from torch import nn
model = nn.Sequential(
    nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 5)
)
scale = float(sys.argv[1]) if len(sys.argv) > 1 else 1.0
optimizer = torch.optim.Adam(model.parameters())
for step in range(10):
    data = torch.randn(37, 20) * (scale if step == 1 else 1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(data), torch.randint(5, (37,))).backward()
    optimizer.step()
open("left", "w").close()
"""

ONE_CORE = ["taskset", "-c", str(min(os.sched_getaffinity(0)))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the script, and `there.json` of its first steps."""
    folder = tmp_path_factory.mktemp("first")
    script(folder, TRAINING)
    done = run([*VERB, "verify", "--reproducible", "5", "--json", "x.py"], folder)
    assert done.returncode == 0, done.stderr
    (folder / "there.json").write_text(done.stdout)
    return folder


def document(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((folder / "there.json").read_text())
    return read


def test_the_document_has_a_stamp_of_each_tensor_after_each_step(folder: Path) -> None:
    seen = document(folder)
    assert seen["options"] == {"--reproducible": "5", "--steps": "3"}
    assert seen["difference"] is None
    assert len(seen["steps"]) == len({step["weights"] for step in seen["steps"]}) == 3
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var"]
    names += ["1.num_batches_tracked", "4.weight", "4.bias"]
    assert [list(step["tensors"]) for step in seen["steps"]] == [names] * 3
    assert not (folder / "left").exists()


def test_one_core_has_the_stamps_of_all(folder: Path) -> None:
    done = run([*ONE_CORE, *VERB, "verify", "--against", "there.json", "x.py"], folder)
    assert done.returncode == 0, done.stderr
    assert "in every bit" in done.stdout
    stamp = document(folder)["steps"][-1]["weights"]
    assert stamp[:16] in done.stdout


def test_a_stamp_alone_is_compared_with_the_last(folder: Path) -> None:
    stamp = document(folder)["steps"][-1]["weights"][:16]
    command = [*ONE_CORE, *VERB, "verify", "--reproducible", "5"]
    done = run([*command, "--against", stamp, "x.py"], folder)
    assert (done.returncode, done.stderr) == (0, "")
    done = run([*command, "--steps", "2", "--against", stamp, "x.py"], folder)
    assert done.returncode == 1
    assert f"NOT those of the other machine: {stamp} there." in done.stdout


def test_the_first_step_that_differs_is_named(folder: Path) -> None:
    done = run([*VERB, "verify", "--against", "there.json", "--json", "x.py", "1.001"], folder)
    assert done.returncode == 1
    assert ", from step 2 on" in json.loads(done.stdout)["difference"]


def test_another_version_of_torch_is_named(folder: Path) -> None:
    other = {**document(folder), "torch": "1.0"}
    (folder / "other.json").write_text(json.dumps(other))
    done = run([*VERB, "verify", "--against", "other.json", "x.py", "1.001"], folder)
    assert "from step 2 on, where torch is 1.0." in done.stdout


def test_the_next_command_is_the_one_for_the_other_machine(folder: Path) -> None:
    done = run([*VERB, "verify", "--reproducible", "5", "--steps", "2", "x.py"], folder)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Next: ")]
    command = line.partition("cputrain ")[2].split()
    done = run([*VERB, *command], folder)
    assert done.returncode == 0, done.stdout
    assert "in every bit" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--against", "zzz"), "--against must be a stamp, of 8 digits or more, or a file"),
        (("--against", "x.py"), "--against needs a value (STAMP); found the script x.py"),
        (("--against", "empty.json"), "found 'empty.json'"),
        (("--reproducible", "0"), "--reproducible must be a whole number from 1"),
        (("--reproducible", "--replicas", "2"), "--replicas must be set without --reproducible"),
        (("--isa", "mmx"), "--isa must be one of"),
    ],
)
def test_a_mistake_is_one_message(folder: Path, options: tuple[str, ...], message: str) -> None:
    (folder / "empty.json").write_text("{}")
    done = run([*VERB, "verify", *options, "x.py"], folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
