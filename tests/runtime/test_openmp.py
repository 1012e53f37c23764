"""Threads of OpenMP that are let go, and come back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.executed

COUNTS = """
import os
import time
import torch
from cputrain.runtime.openmp import end_team

def threads():
    return len(os.listdir("/proc/self/task"))

def become(count):
    deadline = time.monotonic() + 10
    while threads() != count and time.monotonic() < deadline:
        time.sleep(0.001)
    return threads() - count

torch.set_num_threads(3)
before = threads()
end_team()  # there are none yet
many, found = torch.ones(1 << 20), []
for _ in range(3):
    many.add_(1)
    found.append(threads() - before)
    end_team()
    found.append(become(before))
print(found, float(many.sum() / many.numel()), torch.get_num_threads())
"""


FORKS = """
import os
import sys
import torch

if sys.argv[1] == "before":
    import cputrain.runtime.openmp
torch.ones(1 << 20).add_(1)
child = os.fork()
if not child:
    from cputrain.runtime.openmp import end_team
    torch.set_num_threads(1)
    end_team()
    os._exit(int(torch.ones(9).sum()))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")
def test_threads_go_and_come_back():
    found = subprocess.run(
        [sys.executable, "-c", COUNTS], capture_output=True, text=True, check=True
    )
    assert found.stdout == "[2, 0, 2, 0, 2, 0] 4.0 3\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("imported", ["before", "afterwards"])
def test_a_forked_child_has_none_to_wait_for(imported):
    found = subprocess.run(
        [sys.executable, "-c", FORKS, imported],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert found.stdout == "9\n"
