"""`launch --reproducible`: the same bits on any cores, with any workers, and after a restart."""

from __future__ import annotations

import json
import os
import random
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

from cputrain import Split
from cputrain.errors import CputrainError, UsageError
from cputrain.machine.facts import read_machine
from cputrain.reproduce.checkpoint import stamps_of_file
from cputrain.reproduce.stamp import stamp_of
from cputrain.settings.isa import INTEL
from tests.launch.programs import CPUTRAIN, LAUNCH, PYTHON, VERB, launch, run, script
from tests.selected import cases, selected

NETWORKS = str(Path(__file__).with_name("networks.py"))

NAMES = (
    "perceptron", "residual", "depthwise", "recurrent", "transformer", "autoencoder", "unet",
    "tables", "vocabulary",
)  # fmt: skip

STAMP = re.compile(r"weights ([0-9a-f]{16})")

CORES = sorted(os.sched_getaffinity(0))


def pinned(cores: list[int], *argv: str) -> list[str]:
    """A command that has some cores alone."""
    return ["taskset", "-c", ",".join(map(str, cores)), *argv]


def stamps(
    folder: Path, *options: str, names: Sequence[str] = (), cores: list[int] = CORES,
    steps: int = 4, threads: int = 2,
) -> dict[str, str]:  # fmt: skip
    """The stamp of each network after a launch, or of those with these names."""
    words = (str(steps), str(threads), *names)
    command = pinned(cores, CPUTRAIN, "launch", *options, NETWORKS, *words)
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    result: dict[str, str] = json.loads(done.stdout)
    return result


@pytest.fixture(scope="module")
def tested(request: pytest.FixtureRequest) -> list[str]:
    return selected(request, NAMES, __file__)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which kernels in C are compiled once."""
    return tmp_path_factory.mktemp("cores")


@pytest.fixture(scope="module")
def on_one_core(folder: Path, tested: list[str]) -> dict[str, str]:
    return stamps(folder, "--reproducible", names=tested, cores=CORES[:1])


@pytest.fixture(scope="module")
def on_all_cores(folder: Path, tested: list[str]) -> dict[str, str]:
    return stamps(folder, "--reproducible", names=tested, threads=len(CORES))


@pytest.mark.parametrize(
    "name", cases(NAMES, ["depthwise", "recurrent", "transformer", "tables", "vocabulary"])
)
def test_the_number_of_cores_changes_no_bit(
    name: str, on_one_core: dict[str, str], on_all_cores: dict[str, str]
) -> None:
    assert on_one_core[name] == on_all_cores[name]


@pytest.mark.long
@pytest.mark.parametrize("options", [("--threads", "1"), ("--allocator", "default"), ()])
def test_threads_and_allocators_change_no_bit(
    tmp_path: Path, options: tuple[str, ...], on_one_core: dict[str, str]
) -> None:
    assert stamps(tmp_path, "--reproducible", "16", *options) == on_one_core


@pytest.mark.long
def test_the_number_of_shards_changes_bits(tmp_path: Path, on_one_core: dict[str, str]) -> None:
    others = stamps(tmp_path, "--reproducible=3")
    assert not [name for name in NAMES if others[name] == on_one_core[name]]


TRAINS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss = nn.MSELoss()
for batch in (40, 3, 2, 40, 17):
    loss(model(torch.randn(batch, 8)), torch.zeros(batch, 2)).backward()
    optimizer.step()
    optimizer.zero_grad()
torch.save(model.state_dict(), "weights.pt")
"""


def stamp_in(text: str) -> str:
    found = STAMP.search(text)
    assert found is not None, text
    return found[1]


def test_the_last_line_has_the_stamp_of_the_saved_weights(tmp_path: Path) -> None:
    done = launch(tmp_path, "--reproducible", "4", str(script(tmp_path, TRAINS)))
    assert "one thread for each of 4 shards" in done.stderr
    assert "divided among 4 replicas" in done.stderr
    shown = run([*VERB, "stamp", "weights.pt"], tmp_path)
    assert shown.stdout.startswith(stamp_in(done.stderr))


@pytest.mark.parametrize("isa", cases(["portable", "avx2", "avx512"], ["avx2"]))
def test_instructions_are_those_that_were_asked_for(tmp_path: Path, isa: str) -> None:
    prints = script(tmp_path, "import torch; print(torch.backends.cpu.get_cpu_capability())")
    done = run([CPUTRAIN, "launch", "--isa", isa, str(prints)], tmp_path)
    if done.returncode == 2:  # this CPU has them not
        assert "needs a CPU with" in done.stderr or "must be portable" in done.stderr
        return
    assert done.stdout.strip() == {"avx512": "AVX512"}.get(isa, "AVX2")


LOADS = """
import random, sys
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
class Noisy(Dataset):
    def __len__(self):
        return 45
    def __getitem__(self, i):
        return torch.full((8,), i / 45) + torch.randn(8) * random.random() * np.random.rand(), i % 3
if __name__ == "__main__":
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 3))
    optimizer = torch.optim.Adam(model.parameters())
    context = {"multiprocessing_context": sys.argv[2]} if len(sys.argv) > 2 else {}
    loader = DataLoader(Noisy(), 10, shuffle=True, num_workers=int(sys.argv[1]), **context)
    values = set()
    for _ in range(2):
        for data, labels in loader:
            nn.functional.cross_entropy(model(data), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            values.update(data[:, 0].tolist())
    print(torch.rand(3).tolist(), len(values))
"""


def test_the_number_of_workers_changes_no_bit(tmp_path: Path) -> None:
    path = str(script(tmp_path, LOADS))
    runs = [
        launch(tmp_path, "--reproducible", "4", path, *arguments)
        for arguments in (("0",), ("1",), ("3",), ("2", "spawn"))
    ]
    assert len({stamp_in(done.stderr) for done in runs}) == 1
    assert len({done.stdout for done in runs}) == 1
    assert runs[0].stdout.strip().endswith(" 90")  # samples have numbers of their own, each epoch


RESUMES = """
import os, sys, threading
import torch
from torch import nn
from torch.utils.data import TensorDataset
import cputrain
from cputrain.reproduce.stamp import stamp_of_models
torch.manual_seed(0)
data = torch.randn(60, 8), torch.randint(3, (60,))
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters())
if __name__ == "__main__":
    loader = cputrain.DataLoader(
        TensorDataset(*data), 13, shuffle=True, num_workers=int(sys.argv[1])
    )
    step, epoch = 0, 0
    if os.path.exists("state.pt"):
        state = torch.load("state.pt", weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
        step, epoch = state["step"], state["epoch"]
        torch.set_rng_state(state["random"])
    if len(sys.argv) > 4:  # somewhere in a step, or while its state is saved
        threading.Timer(float(sys.argv[4]), os.kill, (os.getpid(), 9)).start()
    while epoch < int(sys.argv[3]):
        for rows, labels in loader:
            nn.functional.cross_entropy(model(rows), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            state = {
                "model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step,
                "loader": loader.state_dict(), "epoch": epoch, "random": torch.get_rng_state(),
            }
            torch.save(state, "new.pt")
            os.replace("new.pt", "state.pt")
            if step == int(sys.argv[2]):
                os.kill(os.getpid(), 9)
        epoch += 1
    print(step, stamp_of_models([model]))
"""


def train_on(
    folder: Path, workers: int, cores: list[int], *arguments: object
) -> CompletedProcess[str]:
    """Begin or continue the training of the script in a folder."""
    words = (str(word) for word in (workers, *arguments))
    command = pinned(cores, *LAUNCH, "--reproducible", "5", "x.py", *words)
    return run(command, folder)


def finish(folder: Path, kills: list[tuple[int, int, list[int]]]) -> str:
    """What a script prints that is killed after some steps, with other workers and cores each."""
    folder.mkdir()
    script(folder, RESUMES)
    for at, workers, cores in kills:
        done = train_on(folder, workers, cores, at, 4)
        assert done.returncode == (0 if at == 0 else -signal.SIGKILL), done.stderr
    return done.stdout


@pytest.mark.parametrize("at", cases([(3,), (2, 11), (7, 8, 9)], [(2, 11)]))
def test_a_run_that_is_killed_goes_on_with_the_same_bits(
    tmp_path: Path, at: tuple[int, ...]
) -> None:
    whole = finish(tmp_path / "whole", [(0, 0, CORES)])
    assert whole.startswith("20 ")
    stops = [(step, n % 3, CORES[: n % len(CORES) + 1]) for n, step in enumerate((*at, 0))]
    assert finish(tmp_path / "killed", stops) == whole


@pytest.mark.long
def test_twenty_kills_at_any_moment_change_no_bit(tmp_path: Path) -> None:
    chance = random.Random(0)
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
        script(tmp_path / name, RESUMES)
    whole = train_on(tmp_path / "whole", 0, CORES, 0, 100)
    assert whole.stdout.startswith("500 "), whole.stderr
    num_kills = 0
    while num_kills < 20:
        cores = chance.sample(CORES, chance.randint(1, len(CORES)))
        moment = chance.uniform(0.0, 0.12)
        done = train_on(tmp_path / "killed", chance.choice((0, 0, 1, 2)), cores, 0, 100, moment)
        assert done.returncode == -signal.SIGKILL, done.stderr + done.stdout
        num_kills += 1
    assert train_on(tmp_path / "killed", 1, CORES, 0, 100).stdout == whole.stdout


SPLITS = """
import torch
from torch import nn
from cputrain import Split
from cputrain.reproduce.stamp import stamp_of_models
torch.set_num_threads(1)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 64), nn.BatchNorm1d(64), nn.Dropout(0.1), nn.Linear(64, 2))
split = Split(model, reproducible=6)
optimizer = torch.optim.SGD(split.parameters(), lr=0.1)
for _ in range(5):
    split(torch.randn(30, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(split.calls_divided, stamp_of_models([model]))
"""


def test_a_split_in_a_script_is_reproducible_too(tmp_path: Path) -> None:
    path = str(script(tmp_path, SPLITS))
    runs = [run(pinned(cores, PYTHON, path), tmp_path) for cores in (CORES[:1], CORES)]
    assert runs[0].stdout.startswith("5 "), runs[0].stderr
    assert runs[0].stdout == runs[1].stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reproducible": 0}, "must be a whole number from 1 to 1024, or None; found 0"),
        ({"reproducible": "4"}, "must be a whole number from 1 to 1024, or None; found '4'"),
        ({"reproducible": 4, "replicas": 2}, "must be given without replicas"),
        ({"reproducible": 4, "devices": ("cpu",)}, "must be given without devices"),
    ],
)
def test_a_mistake_in_split_is_one_message(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CputrainError, match=re.escape(message)):
        Split(torch.nn.Linear(2, 2), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--reproducible", "0"), "must be off or a whole number from 1 to 1024; found '0'"),
        (("--reproducible=many",), "must be off or a whole number from 1 to 1024; found 'many'"),
        (("--reproducible", "--compile", "on"), "must be set without --compile"),
        (("--reproducible", "8", "--replicas", "2"), "must be set without --replicas"),
        (("--reproducible", "8", "--learn"), "must be set without --learn"),
        (("--reproducible", "8", "--memory-limit", "2G"), "must be set without --memory-limit"),
        (("--isa", "mmx"), "must be one of auto, portable, avx2, avx512"),
        (("--isa", "avx2", "--c-kernels", "on"), "must be set without --c-kernels"),
    ],
)
def test_a_mistake_is_one_message(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    done = launch(tmp_path, *options, str(script(tmp_path, "print(1)")))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR"])
def test_a_variable_that_says_otherwise_is_one_message(tmp_path: Path, name: str) -> None:
    path = str(script(tmp_path, "print(1)"))
    isa = "avx2" if read_machine().vendor == INTEL else "portable"
    done = launch(tmp_path, "--isa", isa, path, **{name: "default"})
    assert done.returncode == 2
    assert f"{name} must be " in done.stderr
    assert f"or unset with --isa {isa}; found default. Try: unset {name}" in done.stderr
    same = launch(tmp_path, "--isa", isa, path, ATEN_CPU_CAPABILITY="avx2")
    assert same.returncode == 0, same.stderr


def test_double_backward_is_refused_by_name(tmp_path: Path) -> None:
    code = TRAINS.replace(".backward()", ".backward(create_graph=True)")
    done = launch(tmp_path, "--reproducible", "4", str(script(tmp_path, code)))
    assert done.returncode == 1
    assert "DifferentiatedTwice" in done.stderr
    assert "--reproducible" in done.stderr


def test_python_itself_is_left_as_it_is(tmp_path: Path) -> None:
    path = str(script(tmp_path, LOADS))
    plain = run([PYTHON, path, "1"], tmp_path)
    off = launch(tmp_path, "--reproducible", "off", path, "1")
    assert off.stdout == plain.stdout
    assert "weights" not in off.stderr


def checkpoint(folder: Path) -> dict[str, Any]:
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2])}
    torch.save(state, folder / "flat.pt")
    torch.save({"model": state, "optimizer": {"step": torch.tensor(3)}}, folder / "nested.pt")
    changed = {**state, "a": state["a"].clone().index_fill_(0, torch.tensor([1]), -0.0)}
    torch.save(changed, folder / "changed.pt")
    return state


def test_a_stamp_is_of_names_dtypes_shapes_and_bits(tmp_path: Path) -> None:
    state = checkpoint(tmp_path)
    done = run([*VERB, "stamp", "flat.pt", "nested.pt", "changed.pt"], tmp_path)
    assert done.returncode == 0, done.stderr
    lines = dict(reversed(line.split("  ")) for line in done.stdout.splitlines())
    assert set(lines) == {
        "flat.pt", "nested.pt", "nested.pt:model", "nested.pt:optimizer", "changed.pt",
    }  # fmt: skip
    assert lines["flat.pt"] == lines["nested.pt:model"] == stamp_of(state)
    assert len(set(lines.values())) == 4
    others = [
        {"a": state["a"], "c": state["b"]},
        {"a": state["a"].double(), "b": state["b"]},
        {"a": state["a"].view(3, 2), "b": state["b"]},
        {"a": state["a"]},
        {"a": -state["a"].neg().conj(), "b": state["b"].flip(0)},
    ]
    assert len({stamp_of(state), *map(stamp_of, others)}) == 6
    assert stamp_of({"b": state["b"], "a": state["a"].t().contiguous().t()}) == stamp_of(state)


def test_a_file_without_tensors_is_one_message(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(2, 2), tmp_path / "model.pt")
    torch.save({"epoch": 3}, tmp_path / "empty.pt")
    (tmp_path / "text.pt").write_text("text")
    (tmp_path / "text.safetensors").write_text("text")
    for name in ("model.pt", "empty.pt", "text.pt", "text.safetensors", "missing.pt", "."):
        with pytest.raises(UsageError, match=r"must be a file of torch\.save or safetensors"):
            stamps_of_file(str(tmp_path / name))
    done = run([*VERB, "stamp", "text.pt"], tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("cputrain stamp: the checkpoint text.pt must be")
    assert done.stderr.count("\n") == 1
