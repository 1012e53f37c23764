"""Short waits beside loader workers, and the look for a second OpenMP runtime."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launch.programs import launch, script
from tests.selected import cases

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = [
    pytest.mark.executed,
    pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs"),
]

LOAD = """
import os, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, row):
        return (torch.tensor(float(row)),)

def threads():
    "How many there are, once none has come or gone for a while."
    before, now = None, -1
    while before != now:
        before = now
        time.sleep(0.3)
        now = len(os.listdir("/proc/self/task"))
    return now

if __name__ == "__main__":
    torch.ones(2_000_000).mul_(2)  # the first team
    own = threads()
    loader = DataLoader(Rows(), num_workers=1)
    first = [x.item() for (x,) in loader]
    grown = threads() - own
    second = [x.item() for (x,) in loader]
    assert first == second == [float(n) for n in range(8)]
    assert threads() - own == grown  # a second loader adds nothing
    assert [t.name for t in threading.enumerate() if t is not threading.main_thread()] == []
    print(grown)
"""


def grown(folder: Path, *options: str) -> tuple[int, str]:
    """How many threads the first loader left behind, and what was said at the end."""
    script(folder, LOAD)
    done = launch(folder, *options, "x.py")
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


@pytest.mark.long
def test_workers_bring_a_second_team_that_makes_waits_short(tmp_path: Path) -> None:
    """Beside the thread that made it the team has one, as the first has; off adds neither."""
    count, said = grown(tmp_path, "--threads", "2")
    without, unsaid = grown(tmp_path, "--threads", "2", "--short-waits", "off")
    assert count - without == 2
    assert "short waits beside loader workers" in said
    assert "waits" not in unsaid


def test_one_compute_thread_waits_for_nobody(tmp_path: Path) -> None:
    """Where nothing spins, no team is made."""
    assert "waits" not in grown(tmp_path, "--threads", "1")[1]


def test_short_waits_can_be_had_without_workers(tmp_path: Path) -> None:
    """On sets libgomp's own variable, from the start."""
    script(
        tmp_path,
        "import os, torch\nprint('GOMP_SPINCOUNT' in os.environ)",
    )
    done = launch(tmp_path, "--short-waits", "on", "x.py", OMP_DISPLAY_ENV="verbose")
    assert "GOMP_SPINCOUNT = '1000'" in done.stderr
    assert done.stdout == "False\n"
    assert "short waits" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("name", cases(["GOMP_SPINCOUNT", "OMP_WAIT_POLICY"], ["OMP_WAIT_POLICY"]))
def test_a_variable_of_the_users_is_kept(tmp_path: Path, name: str) -> None:
    """What was set already is not touched, and no team is made."""
    value = {"GOMP_SPINCOUNT": "5", "OMP_WAIT_POLICY": "passive"}[name]
    script(tmp_path, LOAD + f"    assert os.environ[{name!r}] == {value!r}\n")
    done = launch(tmp_path, "x.py", **{name: value})
    assert done.returncode == 0, done.stderr
    assert "waits" not in done.stderr


def test_a_second_openmp_runtime_is_named_at_the_end(tmp_path: Path) -> None:
    """The copy stands for the one that another package brings along."""
    script(
        tmp_path,
        """
import ctypes, glob, os, shutil
import torch
(own,) = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libgomp*"))
shutil.copy(own, "libgomp-other.so.1")
ctypes.CDLL(os.path.abspath("libgomp-other.so.1"))
""",
    )
    said = launch(tmp_path, "x.py").stderr
    assert "2 OpenMP runtimes are loaded" in said
    assert "libgomp-other.so.1" in said
    assert len(said.splitlines()) == 1
