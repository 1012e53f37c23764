"""OpenCL devices as `cputrain info` tells of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cputrain.machine.opencl import OpenCLDevice, read_opencl_devices


def info(*options, **environment):
    done = subprocess.run(
        [sys.executable, "-m", "cputrain.launch", "info", *options],
        capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_devices_that_are_here_are_told():
    devices, problem = read_opencl_devices()
    if not devices:
        pytest.skip(f"needs an OpenCL device: {problem}")
    document = json.loads(info("--json"))["opencl"]
    assert document["problem"] is None
    assert [OpenCLDevice(**one) for one in document["devices"]] == devices
    for one in devices:
        assert 0 < one.largest_tensor_bytes <= one.memory_bytes
        assert one.units > 0
        assert one.shares_memory or one.kind != "CPU"
    assert "ocl:0" in info()
    assert devices[0].name.split()[0] in info()


@pytest.mark.parametrize(
    ("found", "told"),
    [
        ("import os, sys; print('gone', file=sys.stderr); os._exit(7)", "exit code 7: gone"),
        ("import os; os.abort()", "exit code -6: no error message"),
        (
            "class LogicError(Exception): pass\nclass CompilerWarning(Warning): pass\n"
            "def get_platforms(): raise LogicError()",
            "no driver has a device",
        ),
    ],
)
def test_a_driver_that_fails_is_told_of(found, told, tmp_path):
    """A driver cannot be had fail here: what stands for PyOpenCL does what it would do."""
    (tmp_path / "pyopencl.py").write_text(found + "\n")
    assert told in " ".join(info(PYTHONPATH=str(tmp_path)).split())
    document = json.loads(info("--json", PYTHONPATH=str(tmp_path)))["opencl"]
    assert document["devices"] == []
    assert bool(document["problem"]) == ("exit code" in told)


def test_a_captured_machine_has_none(tmp_path):
    path = tmp_path / "machine.json"
    info("--capture", str(path))
    assert json.loads(info("--from", str(path), "--json"))["opencl"] == {
        "devices": [], "problem": None
    }  # fmt: skip
