"""`launch --memory-limit` and `plan --memory`: peaks, losses and messages of whole runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.launch.programs import CPUTRAIN, VERB, launch, run, script
from tests.pool.functions import until

SCRIPT = """
import json, sys, torch
from torch import nn
torch.manual_seed(0)
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(256, 1024), nn.GELU(), nn.Dropout(0.1), nn.Linear(1024, 256), nn.Tanh(),
        )
    def forward(self, data):
        return data + self.layers(data)
model = nn.Sequential(nn.Linear(64, 256), *(Block() for _ in range(12)), nn.Linear(256, 10))
optimizer = torch.optim.AdamW(model.parameters())
batch = int(sys.argv[1])
losses = []
for step in range(int(sys.argv[2])):
    data, labels = torch.randn(batch, 64), torch.randint(10, (batch,))
    loss = nn.functional.cross_entropy(model(data), labels)
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
print(json.dumps(losses))
"""
"""A model that takes some 0.3 GiB beside Python and torch at a batch of 1,400."""

MIB = 1 << 20

LIMITED = re.compile(r"([\d,]+) modules? recomputed in backward \(([\d,]+) of ([\d,]+) MiB\)")


def peak_of_plain(folder: Path, path: str) -> int:
    """MiB that plain python takes without files, as `plan --memory` measures it."""
    code = (
        "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0]); "
        "from cputrain.memory.process_memory import peak_anonymous_bytes; "
        "print(peak_anonymous_bytes())"
    )
    done = run([sys.executable, "-c", code, path, "1400", "2"], folder)
    return int(done.stdout.splitlines()[-1]) // MIB


class Unlimited(NamedTuple):
    """The script without a limit."""

    path: str
    peak_mib: int
    printed: str


@pytest.fixture(scope="module")
def unlimited(tmp_path_factory: pytest.TempPathFactory) -> Unlimited:
    folder = tmp_path_factory.mktemp("unlimited")
    path = str(script(folder, SCRIPT))
    return Unlimited(path, peak_of_plain(folder, path), launch(folder, path, "1400", "3").stdout)


@pytest.mark.parametrize("part", [0.65, pytest.param(0.8, marks=pytest.mark.long)])
def test_a_limit_is_kept_with_the_same_losses(
    tmp_path: Path, unlimited: Unlimited, part: float
) -> None:
    limit = int(part * unlimited.peak_mib)
    done = launch(tmp_path, "--memory-limit", f"{limit}M", unlimited.path, "1400", "3")
    assert done.stdout == unlimited.printed, done.stderr
    found = LIMITED.search(done.stderr)
    assert found is not None, done.stderr
    used, of = (int(number.replace(",", "")) for number in found.groups()[1:])
    assert of == limit
    assert used <= limit


def test_a_model_that_does_not_fit_is_refused_before_its_first_step(tmp_path: Path) -> None:
    path = str(script(tmp_path, SCRIPT))
    done = launch(tmp_path, "--memory-limit", "150M", path, "2000", "6")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "MemoryLimitError" in done.stderr
    assert "No batch fits" in done.stderr or re.search(r"A batch of \d+ instead of", done.stderr)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--memory-limit", "7X"), "--memory-limit must be a size; found '7X'"),
        (("--memory-limit", "1G", "--compile", "on"), "must be set without --compile"),
        (("--memory-limit", "1G", "--replicas", "2"), "found --replicas 2"),
        (("--memory-limit", "1G", "--replicas", "auto"), "must be set without --replicas"),
        (("--memory-limit", "1G", "--record-step", "auto"), "must be set without --record-step"),
    ],
)
def test_a_mistake_is_one_message(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = launch(tmp_path, *options, str(script(tmp_path, "print(1)")))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def memory_of(folder: Path, *arguments: str) -> dict[str, Any]:
    """What `plan --memory` tells of a script."""
    done = run([*VERB, "plan", "--memory", "--json", *arguments], folder)
    assert done.returncode == 0, done.stderr
    memory: dict[str, Any] = json.loads(done.stdout)["memory"]
    return memory


def test_peak_and_largest_batch_are_predicted(tmp_path: Path) -> None:
    path = str(script(tmp_path, SCRIPT))
    batch = 600
    memory = memory_of(tmp_path, "--memory-limit", "2G", path, str(batch), "100")
    assert memory["batch"] == batch
    assert memory["limit_bytes"] == 2 << 30
    assert sum(memory["parts"].values()) == pytest.approx(memory["peak_bytes"], rel=0.05)
    parameters = 4 * (64 * 256 + 256 + 12 * (2 * 256 * 1024 + 1280) + 2560 + 10)
    for part, size in (("parameters", 1), ("gradients", 1), ("optimizer", 2)):
        assert memory["parts"][part] == pytest.approx(size * parameters, rel=0.01), part
    # of each sample: the input, and in each block its input, GELU's, dropout's mask and output,
    # and tanh's output
    saved = 4 * (64 + 12 * (256 + 1024 + 1024 + 1024 + 256) + 256)
    assert memory["parts"]["activations"] / batch == pytest.approx(saved, rel=0.1)
    larger = memory_of(tmp_path, path, str(2 * batch), "100")["peak_bytes"]
    predicted = memory["peak_bytes"] + batch * memory["bytes_per_sample"]
    assert predicted == pytest.approx(larger, rel=0.1)


def test_memory_is_shown_as_tables(tmp_path: Path) -> None:
    done = run([*VERB, "plan", "--memory", str(script(tmp_path, SCRIPT)), "100", "99"], tmp_path)
    assert done.returncode == 0, done.stderr
    for text in ("at the peak of a step", "activations that backward needs", "batches of up to"):
        assert text in done.stdout


def test_a_script_without_steps_is_refused(tmp_path: Path) -> None:
    done = run([*VERB, "plan", "--memory", str(script(tmp_path, "import torch"))], tmp_path)
    assert done.returncode == 2
    assert "must train for some steps; found no optimizer took a step" in done.stderr


GROUPS = Path("/sys/fs/cgroup/memory")


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Path]:
    """A control group of version 1, whose processes may take so much memory."""
    folder = GROUPS / f"cputrain-{os.getpid()}-{tmp_path.name}"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("control groups of memory cannot be made here")
    try:
        yield folder
    finally:
        until(lambda: is_removed(folder))


def is_removed(folder: Path) -> bool:
    """Remove a control group; a process of it that was killed may still be there."""
    try:
        folder.rmdir()
    except OSError:
        return False
    return True


@pytest.mark.long
def test_what_kills_python_is_survived_in_a_control_group(
    tmp_path: Path, group: Path, unlimited: Unlimited
) -> None:
    limit = int(0.65 * unlimited.peak_mib)
    (group / "memory.limit_in_bytes").write_text(str(limit * MIB))
    enter = f"echo $$ > {group}/cgroup.procs && exec"
    shell = shutil.which("sh") or "sh"
    arguments = f"{unlimited.path} 1400 3"
    died = run([shell, "-c", f"{enter} {sys.executable} {arguments}"], tmp_path)
    assert died.returncode == -9, died.stderr
    done = run(
        [shell, "-c", f"{enter} {CPUTRAIN} launch --memory-limit auto {arguments}"], tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == unlimited.printed


def test_a_limit_ends_where_the_script_compiles_a_model(tmp_path: Path) -> None:
    compiles = SCRIPT.replace("batch = int", 'torch.compile(model, backend="eager"); batch = int')
    done = launch(tmp_path, "--memory-limit", "4G", str(script(tmp_path, compiles)), "10", "2")
    assert done.returncode == 0, done.stderr
    assert "no memory limit, as the script compiles a model" in done.stderr


def test_a_forward_that_does_not_fit_is_refused_before_it_is_killed(
    tmp_path: Path, group: Path
) -> None:
    path = str(script(tmp_path, SCRIPT))
    (group / "memory.limit_in_bytes").write_text(str(300 * MIB))
    shell = shutil.which("sh") or "sh"
    enter = f"echo $$ > {group}/cgroup.procs && exec"
    done = run(
        [shell, "-c", f"{enter} {CPUTRAIN} launch --memory-limit auto {path} 8000 2"], tmp_path
    )
    assert done.returncode == 1, done.stderr
    assert "MemoryLimitError" in done.stderr
    assert re.search(r"A batch of \d+ instead of 8000 would fit|No batch fits", done.stderr)
    assert "AttributeError" not in done.stderr
