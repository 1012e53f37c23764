"""What a plan becomes in the script's process: threads, denormals, and the line that tells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.launch.programs import launch, ours, planned, script
from tests.selected import cases

TELL = """
import json, os, sys, warnings
{before}
import torch
import numpy
def tiny():
    # large enough for every OpenMP thread to get a part
    return (torch.full((1_000_000,), 1e-38) * 1e-3).count_nonzero().item()
print(json.dumps([
    torch.get_num_threads(), tiny(), (torch.tensor(1e-38) * 1e-3).item() == 0,
    [str(numpy.finfo(kind).eps) for kind in (numpy.float16, numpy.float32, numpy.float64)],
    str(torch.finfo(torch.float32).tiny), torch.get_num_interop_threads(),
]))
"""


def told(folder: Path, *words: str, before: str = "", **changes: str) -> list[object]:
    script(folder, TELL.replace("{before}", before))
    done = launch(folder, *words, "x.py", **changes)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(ours(done)), done.stderr
    found: list[object] = json.loads(done.stdout)
    return found


def test_torch_runs_as_many_threads_as_the_plan_says(tmp_path: Path) -> None:
    every = str(len(os.sched_getaffinity(0)))
    for words, changes in (
        ([], {}),
        (["--threads", "1"], {}),
        (["--threads", every], {"MKL_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}),
        ([], {"MKL_NUM_THREADS": "1"}),
    ):
        value = planned(tmp_path, *words, **changes)["threads"]["value"]
        assert told(tmp_path, *words, **changes)[0] == value, (words, changes)


@pytest.mark.parametrize(
    "before",
    cases(
        ["", "import numpy", "import numpy; numpy.finfo('float32').tiny"],
        ["import numpy; numpy.finfo('float32').tiny"],
    ),
)
def test_denormals_vanish_in_every_thread_when_asked_without_a_warning(
    tmp_path: Path, before: str
) -> None:
    words = ("--flush-denormals", "on", "--python-args", "-W error")
    assert told(tmp_path, *words, before=before)[1:3] == [0, True]


def test_denormals_stay_unless_asked_and_interop_threads_are_set(tmp_path: Path) -> None:
    found = told(tmp_path, "--interop-threads", "1")
    assert found[1:3] == [1_000_000, False]
    assert found[5] == 1


@pytest.mark.executed
def test_a_script_may_hide_numpy_or_close_its_streams(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import sys, types\nsys.modules['numpy'] = None\nimport torch\n"
        "assert torch.tensor(1e-38) * 1e-3 == 0\n"
        "import importlib.util\nassert importlib.util.find_spec('torch').loader\n"
        "sys.stderr.close()\n",
    )
    done = launch(tmp_path, "--flush-denormals", "on", "x.py")
    assert done.returncode == 0
    assert "cputrain" not in done.stderr


def test_asking_for_torch_without_loading_it_keeps_the_hook(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import importlib.util, sys\n"
        "for _ in range(3):\n    assert importlib.util.find_spec('torch') is not None\n"
        "assert 'torch' not in sys.modules\n"
        "import torch.nn\n"
        "assert torch.tensor(1e-38) * 1e-3 == 0\n"
        "assert 'exec_module' not in vars(torch.__spec__.loader)\n",
    )
    done = launch(tmp_path, "--flush-denormals", "on", "x.py")
    assert done.returncode == 0, done.stderr
    assert len(ours(done)) == 1


def test_the_line_names_what_was_applied(tmp_path: Path) -> None:
    script(tmp_path, "import torch, os\nif os.fork() == 0:\n    raise SystemExit\nos.wait()\nraise "
           "ValueError('mine')")  # fmt: skip
    cpu = min(os.sched_getaffinity(0))
    done = launch(tmp_path, "--placement", str(cpu), "--allocator", "default", "x.py")
    assert done.returncode == 1
    assert len(ours(done)) == 1
    assert done.stderr.splitlines()[-1] == f"cputrain: 1 thread, CPUs {cpu}"


def test_the_line_tells_what_holds_when_the_script_ends(tmp_path: Path) -> None:
    script(
        tmp_path,
        "import os, torch\n"
        "torch.set_num_threads(1)\n"
        "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "torch.set_flush_denormal(False)\n",
    )
    cpus = sorted(os.sched_getaffinity(0))
    mask = ",".join(map(str, cpus))
    done = launch(tmp_path, "--placement", mask, "--flush-denormals", "on", "x.py")
    assert done.stderr == f"cputrain: 1 thread, CPUs {cpus[0]}\n"
