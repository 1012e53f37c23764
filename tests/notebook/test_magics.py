"""%cputrain_setup, %cputrain_tune and %%cputrain_tune in a real IPython."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.launch.programs import PYTHON, environment, script
from tests.notebook.shells import SHELL, in_shell

CELL = """
import torch
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 8)
"""

LOOP = """
for step in range(200):
    loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

FOUND = """
from cputrain.notebook.running import remember_winner
from cputrain.tune.result import SearchResult, Trial
trial = Trial(stage="rules", settings={}, seconds=0.1, speedup=None, says="<b>fine</b>", good=True)
found = SearchResult(settings={"threads": "1", "fused_optimizer": "off"}, against_rules=None,
    against_python=1.5, reason="1.5 times as fast", reduced=False, loss_difference=None,
    later=None, pays_after=None, untried=(), trials=(trial,), seconds=1.0)
remember_winner(found, "%cputrain_tune")
"""


def temporary(folder: Path) -> Path:
    """A temporary folder for the processes of a test, where what they leave can be seen."""
    path = folder / "temporary"
    path.mkdir()
    return path


def test_the_extension_comes_without_torch_and_goes_without_a_trace(tmp_path: Path) -> None:
    answers = in_shell(
        tmp_path,
        "%load_ext cputrain",
        "import sys; print([name for name in sys.modules if name.partition('.')[0] == 'torch'])",
        "%cputrain_setup --help",
        "%cputrain_tune --help",
        "%unload_ext cputrain",
        "%cputrain_setup",
    )
    assert answers[1].out == "[]\n"
    assert "Usage: %cputrain_setup [options]" in answers[2].out
    assert "--cells RANGE" in answers[3].out
    assert "`%cputrain_setup` not found" in answers[5].err


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (
            "%cputrain_setup --thread 1",
            "--thread is not an option of %cputrain_setup. Did you mean",
        ),
        ("%cputrain_setup --threads none", "--threads must be auto or a whole number"),
        ("%cputrain_setup 'x", "the line must be quoted as in a shell"),
        ("%cputrain_setup train.py", "takes only options; found 'train.py'"),
        ("%cputrain_tune", "%cputrain_tune needs a script, or a cell under it"),
        ("%cputrain_tune no.py", "the script no.py does not exist"),
        ("%%cputrain_tune x.py\npass", "takes a cell and no script; found 'x.py'"),
        ("%%cputrain_tune --budget soon\npass", "--budget must be a duration from 10s"),
        ("%%cputrain_tune --cells 7-9\npass", "--cells must name earlier inputs"),
        ("%%cputrain_tune\nif:", "must be Python that runs as a script"),
        ("cputrain.setup(threads='none')", "the argument threads must be auto or a whole"),
    ],
)
def test_what_breaks_a_rule_is_one_message(tmp_path: Path, cell: str, says: str) -> None:
    *_, answer, after = in_shell(tmp_path, "import cputrain\n%load_ext cputrain", cell, "print(1)")
    told = answer.err or answer.out  # IPython prints what is not about usage
    assert not answer.ok
    assert says in told
    assert told.startswith("UsageError: ")
    assert len(told.splitlines()) == 1, told
    assert after.out == "1\n"


def test_a_setup_is_a_table_and_tells_later_what_it_met(tmp_path: Path) -> None:
    setup, _, so_far, plan, machine, found, again = in_shell(
        tmp_path,
        "%load_ext cputrain\n%cputrain_setup --threads 1",
        CELL.replace(
            "torch.nn.Linear(8, 1)",
            "torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))",
        )
        + "optimizer = torch.optim.Adam(model.parameters())"
        + LOOP,
        "%cputrain_setup --so-far",
        "import cputrain\nfrom cputrain.machine import read_machine\n_1.plan",
        "read_machine()",
        FOUND + "found",
        "cputrain.setup()",
    )
    assert "fused optimizers" in setup.text
    assert setup.html.startswith("<div")
    assert "fused Adam (4 tensors)" in so_far.out
    for answer, says in ((plan, "set by --threads"), (machine, "Budget"), (found, "plain python")):
        assert says in answer.text
        assert "<table" in answer.html
        assert "<script" not in answer.html
    assert "&lt;b&gt;fine" in found.html
    # what was measured holds from then on
    assert "optimizers as the script sets them" in again.text
    assert "%cputrain_tune: 1.5 times as fast" in again.html


@pytest.mark.long
def test_a_cell_is_tuned_and_nothing_stays_of_it(tmp_path: Path) -> None:
    place = temporary(tmp_path)
    (tmp_path / "mine.py").write_text("rate = 0.1")
    lacking, tuned, setup, processes = in_shell(
        tmp_path,
        "%load_ext cputrain",
        CELL,
        "%%cputrain_tune --budget 10\n" + LOOP,
        "%%cputrain_tune --budget 15 --steps 10 --cells 2 --threads 1\n!echo\nimport mine\n" + LOOP,
        "import cputrain; cputrain.setup(threads=1)",
        "import psutil; print(psutil.Process().children(recursive=True))",
        TMPDIR=str(place),
    )[2:]
    assert "NameError: name 'model' is not defined" in lacking.err
    assert "Put the cells that it needs before it: %%cputrain_tune --cells 1-4" in lacking.err
    assert len(lacking.err.splitlines()) == 2  # after how long plans are tried
    assert tuned.ok, tuned.err
    assert "plain python" in tuned.text
    assert "Left out of the trials: !echo" in tuned.text
    assert "1 thread" in tuned.text  # it was applied to this process
    assert "<table" in tuned.html
    assert "already so: 1 thread" in setup.text
    assert processes.out == "[]\n"
    assert _ours(place) == []
    cache = tmp_path / "home" / "cache" / "cputrain"
    assert not [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.long
def test_a_script_is_tuned_by_a_line_and_kept_for_its_launches(tmp_path: Path) -> None:
    script(tmp_path, CELL + LOOP, "train.py")
    _, tuned = in_shell(
        tmp_path, "%load_ext cputrain", "%cputrain_tune --budget 10 --steps 10 train.py"
    )
    assert tuned.ok, tuned.err
    (kept,) = (tmp_path / "home" / "cache" / "cputrain" / "tuned").iterdir()
    assert f"Kept in {kept}." in tuned.text
    assert "cputrain: " not in tuned.text  # a script is not this process


@pytest.mark.long
def test_an_interrupt_ends_a_search_and_the_shell_goes_on(tmp_path: Path) -> None:
    place = temporary(tmp_path)
    (tmp_path / "driver.py").write_text(SHELL)
    cells = ["%load_ext cputrain", "%%cputrain_tune\nimport time; time.sleep(60)", "print('on')"]
    child = subprocess.Popen(
        (PYTHON, "driver.py"),
        stdin=subprocess.PIPE,
        cwd=tmp_path,
        env=environment(tmp_path, TMPDIR=str(place), IPYTHONDIR=str(tmp_path / "ipython")),
    )
    assert child.stdin is not None
    child.stdin.write(json.dumps(cells).encode())
    child.stdin.close()
    end = time.monotonic() + 60
    while not _running(place) and time.monotonic() < end:
        time.sleep(0.1)
    os.kill(child.pid, signal.SIGINT)
    assert child.wait(60) == 0
    _, ended, after = json.loads((tmp_path / "answers.json").read_text())
    assert "interrupted before anything was measured" in ended["out"]
    assert "Traceback" not in ended["err"] + ended["out"]
    assert after["out"] == "on\n"
    assert _ours(place) == []
    assert _running(place) == []


def _ours(place: Path) -> list[str]:
    """What cputrain left in a folder; torch makes one there for itself."""
    return [path.name for path in place.iterdir() if "cputrain" in path.name]


def _running(place: Path) -> list[str]:
    """Command lines of processes that run something in a folder."""
    import psutil

    lines = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
    return [" ".join(line) for line in lines if line and any(str(place) in word for word in line)]
