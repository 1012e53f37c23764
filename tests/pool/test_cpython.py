"""CPython's own tests of its Pool pass with ours in its place."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from tests.launch.programs import PYTHON, environment

SECONDS = {"fork": 120, "forkserver": 240, "spawn": 540}
"""The time in which each start method's tests must be over."""


CLASSES = {
    "WithProcessesTestPool",
    "WithManagerTestPool",
    "WithProcessesTestPoolWorkerErrors",
    "WithProcessesTestPoolWorkerLifetime",
    "TestInitializers",
    "TestPoolNotLeakOnFailure",
    "TestStdinBadfiledescriptor",
    "TestSyncManagerTypes",
}
"""What there is of CPython's that tests a process pool; its test of fork bombs has none."""


@pytest.mark.long
@pytest.mark.executed
@pytest.mark.parametrize("method", SECONDS)
def test_cpythons_own_tests_pass(method: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [PYTHON, "-m", "tests.pool.cpython", method],
        cwd=root,
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=SECONDS[method])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        pytest.fail(f"not over after {SECONDS[method]} seconds:\n{said[-4000:]}")
    assert process.returncode == 0, said[-4000:]
    classes = re.search(r"^classes: (.*)$", said, re.MULTILINE)
    assert classes is not None, said[-4000:]
    assert set(classes[1].split()) >= CLASSES
    ran = re.search(r"^(\d+) ran, (\d+) skipped$", said, re.MULTILINE)
    assert ran is not None, said[-4000:]
    assert int(ran[1]) - int(ran[2]) >= 40
