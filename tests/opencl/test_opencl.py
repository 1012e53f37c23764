"""The "ocl" device: its files of tests in processes of their own.

Torch has one place for a further device and keeps what is in it, and what is compiled looks at it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = {
    "calls": ("tensors", "moved", "processes", "fallback", "kernels", "drawn", "backward_errors"),
    "operators": ("operators", "arguments", "pocl", "tiles"),
    "training": ("networks", "among_devices", "repeated", "between", "memory"),
    "replayed": ("graphs", "graphed_models", "language_models"),
    "device with memory of its own": ("tensors", "moved"),
    "NaN in free memory": ("kernels",),
}
"""The files of each process."""

VARIABLES = {
    "device with memory of its own": "CPUTRAIN_TEST_APART",
    "NaN in free memory": "CPUTRAIN_TEST_POISON",
}
"""What these processes have in their environment."""


@pytest.fixture(scope="module", autouse=True)
def _there():
    asked = subprocess.run(
        [sys.executable, "-c", "import cputrain.opencl"],
        capture_output=True,
        text=True,
        check=False,
    )
    if "needs an OpenCL device" in asked.stderr or "needs PyOpenCL" in asked.stderr:
        pytest.skip("needs an OpenCL device")
    assert asked.returncode == 0, asked.stderr


TWICE = ("kernels", "moved")
"""Files of `calls` that `make test` runs only as the other processes with them do."""


@pytest.mark.parametrize("name", FILES)
def test_in_a_process_of_its_own(name, pytestconfig):
    """Also as if the device had memory of its own, as a GPU has; and with NaN in free memory."""
    is_short = pytestconfig.option.markexpr == "not long"
    files = [file for file in FILES[name] if not (is_short and name == "calls" and file in TWICE)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         "-m", pytestconfig.option.markexpr,
         *(str(Path(__file__).with_name(f"{file}.py")) for file in files)],
        capture_output=True, text=True, timeout=1200, check=False,
        env={**os.environ, **({VARIABLES[name]: "1"} if name in VARIABLES else {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
