"""The "ocl" device: each file of tests in a process of its own.

Torch has one place for a further device and keeps what is in it, and what is compiled looks at it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FILES = (
    "tensors", "moved", "fallback", "kernels", "networks", "drawn", "operators", "among_devices",
    "repeated", "between", "memory", "arguments", "pocl", "backward_errors",
)  # fmt: skip


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


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "") for name in FILES),
        ("tensors", "CPUTRAIN_TEST_APART"),
        ("moved", "CPUTRAIN_TEST_APART"),
        ("kernels", "CPUTRAIN_TEST_POISON"),
    ],
)
def test_in_a_process_of_its_own(name, how, pytestconfig):
    """Also as if the device had memory of its own, as a GPU has; and with NaN in what is free."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short",
         "-m", pytestconfig.option.markexpr, str(Path(__file__).with_name(f"{name}.py"))],
        capture_output=True, text=True, timeout=1200, check=False,
        env={**os.environ, **({how: "1"} if how else {})},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
