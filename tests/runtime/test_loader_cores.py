"""DataLoader workers on the cores kept for them, and nobody else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.launch.programs import launch, script

CPUS = sorted(os.sched_getaffinity(0))

pytestmark = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")

LOAD = """
import os, sys
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

class Masks(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return index, sorted(os.sched_getaffinity(0)), torch.get_num_threads()

class Busy(Sampler):
    "Starts OpenMP's threads where workers are started."
    def __iter__(self):
        torch.ones(2_000_000).mul_(2)
        return iter(range(8))
    def __len__(self):
        return 8

class Broken:
    def __reduce__(self):
        raise RuntimeError("cannot be sent")

def everyone():
    "The mask of each thread of this process."
    masks = set()
    for thread in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{thread}/status") as file:
                line = next(line for line in file if line.startswith("Cpus_allowed_list"))
        except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            continue
        masks.add(line.split()[1])
    return masks

if __name__ == "__main__":
    kept = eval(sys.argv[1])
    own = everyone()
    assert len(own) == 1
    for method in ("fork", "spawn", "forkserver"):
        if method == "fork":
            sampler = Busy()
        loader = DataLoader(
            Masks(), num_workers=2, batch_size=None, sampler=sampler,
            multiprocessing_context=method,
        )
        seen = list(loader)
        assert sorted(index for index, _, _ in seen) == list(range(8))
        assert {tuple(mask) for _, mask, _ in seen} == {kept}, (method, seen)
        assert {threads for _, _, threads in seen} == {1}
        assert everyone() == own, (method, everyone())
        assert torch.get_num_threads() == len(os.sched_getaffinity(0))  # as before it
    try:
        broken = Masks()
        broken.x = Broken()
        next(iter(DataLoader(broken, num_workers=1, multiprocessing_context="spawn")))
    except RuntimeError as error:
        assert "cannot be sent" in str(error)
    else:
        raise AssertionError
    assert everyone() == own
    assert torch.get_num_threads() == len(os.sched_getaffinity(0))
    assert len(list(DataLoader(Masks(), batch_size=None))) == 8
"""


@pytest.mark.long
def test_workers_sit_on_the_kept_core_and_their_parent_where_it_was(tmp_path: Path) -> None:
    script(tmp_path, LOAD)
    kept = CPUS[-1]
    done = launch(tmp_path, "--loader-cores", "1", "x.py", f"({kept},)")
    assert done.returncode == 0, done.stderr
    assert f"2 loader workers on CPUs {kept}" in done.stderr.splitlines()[-1]
    assert len([line for line in done.stderr.splitlines() if "cputrain" in line]) == 1
    if len(CPUS) == 2:  # one thread computes beside them, and has no others to wait for
        assert "short waits" not in done.stderr


def test_workers_share_every_core_unless_told_otherwise(tmp_path: Path) -> None:
    text = LOAD.replace('for method in ("fork", "spawn", "forkserver")', 'for method in ("fork",)')

    script(tmp_path, text)
    done = launch(tmp_path, "x.py", f"tuple({CPUS})")
    assert done.returncode == 0, done.stderr
    assert "loader workers on CPUs" not in done.stderr
