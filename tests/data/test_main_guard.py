"""A script without a main guard is told of it once, where workers import the script."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.launch.programs import launch, plain, script

UNGUARDED = """
import sys, torch
from {module} import DataLoader
print("imported", file=sys.stderr)
class Rows:
    def __len__(self):
        return 8
    def __getitem__(self, row):
        return torch.ones(3) * row
loader = DataLoader(Rows(), 2, num_workers=2, multiprocessing_context="{method}"{options})
for batch in loader:
    print(batch.sum())
"""


def _told_once(done: subprocess.CompletedProcess[str]) -> None:
    lines = [
        line for line in done.stderr.splitlines() if not line.startswith(("imported", "cputrain: "))
    ]
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("Traceback") == 1, done.stderr
    assert lines[-1].startswith("cputrain.errors.UnguardedMain: "), done.stderr
    assert 'must be iterated under `if __name__ == "__main__":`' in lines[-1]
    assert len(lines) < 12, done.stderr


@pytest.mark.parametrize(
    ("method", "options"), [("spawn", ""), ("forkserver", ", persistent_workers=True, timeout=60")]
)
@pytest.mark.parametrize("run", [plain, launch], ids=["python", "launch"])
def test_a_missing_main_guard_is_named_once(
    tmp_path: Path, run: Any, method: str, options: str
) -> None:
    module = "cputrain" if run is plain else "torch.utils.data"
    path = script(tmp_path, UNGUARDED.format(module=module, method=method, options=options))
    _told_once(run(tmp_path, str(path)))


OWN_PROCESS = """
import multiprocessing
from cputrain import DataLoader
class Rows:
    def __len__(self):
        return 8
    def __getitem__(self, row):
        return row
def target():
    pass
if __name__ == "__main__":
    child = multiprocessing.get_context("spawn").Process(target=target)
    child.start()
    child.join()
    print(child.exitcode)
else:
    next(iter(DataLoader(Rows(), num_workers=1, multiprocessing_context="spawn")))
"""


def test_other_processes_are_told_by_python(tmp_path: Path) -> None:
    done = plain(tmp_path, str(script(tmp_path, OWN_PROCESS)))
    assert done.stdout.split() == ["1"]
    assert "has finished its bootstrapping phase" in " ".join(done.stderr.split())


NAMES = """
import multiprocessing
from {module} import DataLoader
class Rows:
    def __len__(self):
        return 2
    def __getitem__(self, row):
        process = multiprocessing.current_process()
        return type(process.name).__name__, process.name
if __name__ == "__main__":
    for method in ("spawn", "forkserver"):
        loader = DataLoader(Rows(), None, num_workers=1, multiprocessing_context=method)
        iterator = iter(loader)
        print(next(iterator), type(iterator._workers[0].name), len(iterator._workers[0].name))
"""


def test_workers_have_the_names_that_torch_gives_them(tmp_path: Path) -> None:
    shown = [
        plain(tmp_path, str(script(tmp_path, NAMES.format(module=module)))).stdout
        for module in ("torch.utils.data", "cputrain")
    ]
    assert shown[0].replace("<class 'str'>", "") == shown[1].replace(
        "<class 'cputrain.data.transport._WorkerName'>", ""
    )
    assert shown[0]
