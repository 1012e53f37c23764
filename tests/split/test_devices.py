"""A batch divided among devices: the tests in among_devices.py, in a process of their own.

Autograd starts a thread for each kind of device with the first backward of a process, and a device
that is there only later has none.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_among_devices():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         str(Path(__file__).with_name("among_devices.py"))],
        capture_output=True, text=True, timeout=600, env=os.environ, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
