"""`--backend`: an unmodified script, run by what was proved, or asked for."""

from __future__ import annotations

import os

import pytest

from cputrain.backends.findings import verdict_circumstances
from cputrain.backends.probing import describe_host, probe_all
from cputrain.backends.verdict import BackendVerdict, LayerResult, ModeVerdict, save_verdict
from cputrain.machine import read_machine
from tests.launch.programs import PYTHON, complaint, launch, plain, script, verb

EVALUATES = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(96, 16), torch.randint(4, (96,))
loss_of = nn.CrossEntropyLoss()
for step in range(5):
    optimizer.zero_grad()
    loss_of(model.train()(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        print(f"{loss_of(model.eval()(x), y).item():.6f}")
"""


@pytest.fixture
def here(tmp_path, installed):
    """Launches in a folder where backends are planted: its cache is that of the test."""
    script(tmp_path, EVALUATES)
    variables = {name: os.environ[name] for name in ("PYTHONPATH", "XDG_CACHE_HOME")}

    def run(*words, verb_=launch, **more):
        return verb_(tmp_path, *words, **{name: os.environ[name] for name in variables}, **more)

    run.install = installed
    run.folder = tmp_path
    return run


def verdict_on(name, *, training, evaluation):
    """One that is kept, as if it had been measured here."""
    machine = read_machine(detail=False)
    host = describe_host(machine)
    (probed,) = probe_all(host, name)
    judged = [
        None if found is None else ModeVerdict(layers=(LayerResult(layer="linear", **found),))
        for found in (training, evaluation)
    ]
    found = BackendVerdict(
        backend=name, version=probed.version, when="2026-01-01",
        training=judged[0], evaluation=judged[1],
    )  # fmt: skip
    save_verdict(found, verdict_circumstances(machine, host, probed))


RIGHT = {"speedup": 1.5}
WRONG = {"fault": "its gradient is not a number"}


def test_who_is_asked_for_is_examined_once_and_used(here):
    here.install("remembers")
    right = here("x.py", verb_=plain)
    done = here("--backend", "remembers", "x.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == right.stdout
    assert "remembers is examined first, once for this machine" in done.stderr
    assert "remembers, evaluation: lstm agrees" in done.stderr
    assert "used in evaluation alone: training: it does not claim to train" in done.stderr
    assert "a model evaluated by remembers, 0e+00 from torch's" in done.stderr
    again = here("--backend", "remembers", "x.py")
    assert again.stdout == right.stdout
    assert "examined" not in again.stderr
    assert "correct, " in planned(here, "--json")


def planned(here, *words):
    """What `cputrain plan` prints, in one line."""
    done = here("plan", *words, verb_=verb)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_a_verdict_that_holds_is_acted_upon(here):
    here.install("counts")
    verdict_on("counts", training=WRONG, evaluation=RIGHT)
    done = here("x.py")
    assert done.stdout == here("x.py", verb_=plain).stdout
    assert "counts in evaluation" in planned(here, "--json")
    assert "for evaluation, counts was correct, 1.50 times as fast" in planned(here, "--json")
    assert "counts" not in here("--backend", "default", "x.py").stderr
    verdict_on("counts", training=WRONG, evaluation={"speedup": 0.9})
    assert "gradient is not a number" in planned(here, "--why-not", "counts")
    assert "0.90 times as fast" in planned(here, "--why-not", "counts")


def test_a_verdict_of_another_version_is_none(here):
    folder = here.install("counts")
    verdict_on("counts", training=RIGHT, evaluation=RIGHT)
    path = next((here.folder / "cache" / "cputrain" / "backends").glob("*.json"))
    path.write_text(path.read_text().replace('"the backend": "1.0"', '"the backend": "0.9"'))
    assert "the backend changed since it was examined" in planned(here, "--why-not", "counts")
    path.write_text("{")
    assert here("x.py").returncode == 0
    assert folder.exists()


def test_what_is_wrong_needs_another_word(here):
    here.install("wrong")
    verdict_on("wrong", training=None, evaluation={"fault": "its output differs by 1.0e-02"})
    line = complaint(here("--backend", "wrong", "x.py"))
    assert "--backend must be a backend that is right" in line
    assert "its output differs by 1.0e-02" in line
    assert "--unsafe" in line
    done = here("--backend", "wrong", "--unsafe", "x.py")
    assert done.returncode == 0
    assert "wrong is used though it is not right" in done.stderr
    assert done.stdout != here("x.py", verb_=plain).stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--backend", "countz"), "Did you mean counts?"),
        (("--backend", "ipex"), "ipex, and its last release is for torch 2.8"),
        (("--backend", "not-here"), "not-here, and it is not for Linux. Wait for it."),
        (("--backend", "crashes"), "crashes, and its probe was killed by SIGSEGV"),
        (("--backend", "counts", "--compile", "on"), "does not go with --compile on"),
        (("--unsafe",), "--unsafe requires the name of a backend"),
    ],
)
def test_what_cannot_be_had_is_told(here, words, says):
    here.install("counts", "not-here", "crashes")
    verdict_on("counts", training=RIGHT, evaluation=RIGHT)
    assert says in complaint(here(*words, "x.py"))


def test_a_launch_without_any_starts_no_process(here):
    done = here("-X", "importtime", "-m", "cputrain.launch", "plan", verb_=plain)
    loaded = {line.split("|")[-1].strip() for line in done.stderr.splitlines()}
    assert "cputrain.launch.backends" in loaded
    assert not loaded & {"cputrain.backends", "subprocess", "importlib.metadata"}


def test_ranks_have_what_the_machine_was_given(here):
    here.install("counts")
    verdict_on("counts", training=WRONG, evaluation=RIGHT)
    tells = "import json, os, torch; print(json.loads(os.environ['CPUTRAIN_PLAN'])['values'])"
    script(here.folder, tells, "y.py")
    rank = ("LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=none")
    done = here("--cmd", "--", "env", *rank, PYTHON, "y.py")
    assert done.returncode == 0, done.stderr
    assert "'evaluation': 'counts'" in done.stdout
