"""Processes that start with the device, without it, or from one that has it."""

from __future__ import annotations

import _ctypes
import os
import shutil
import subprocess
import sys

import torch


def test_what_is_missing_is_told():
    done = run("-c", "import sys; sys.modules['pyopencl'] = None; import cputrain.opencl")
    assert "cputrain.opencl needs PyOpenCL" in done.stderr
    assert 'pip install "cputrain[opencl]"' in done.stderr


def test_drivers_without_a_file_are_found(tmp_path):
    """As in a container that has a GPU's driver and no list of drivers; here it is an empty one."""
    shutil.copy(_ctypes.__file__, tmp_path / "libamdocl64.so")
    ask = (
        "import cputrain.opencl, os, torch; folder = os.environ['OCL_ICD_VENDORS']; "
        "print(open(folder + '/libamdocl64.so.icd').read().strip(), torch.ocl.device_count())"
    )
    count = torch.ocl.device_count()
    for _ in range(2):
        done = run("-c", ask, XDG_CACHE_HOME=str(tmp_path), LD_LIBRARY_PATH=str(tmp_path))
        assert done.stdout == f"libamdocl64.so {count}\n", done.stderr


def test_another_device_in_torchs_one_place_is_told():
    done = run(
        "-c", "import torch; torch.utils.rename_privateuse1_backend('mine'); import cputrain.opencl"
    )
    assert "needs torch's single PrivateUse1 backend; found 'mine'" in done.stderr


def test_tensors_of_two_devices_do_not_go_together():
    done = run(
        "-c", "import torch, cputrain.opencl\n"
        "one, two = torch.ones(3, device='ocl:0'), torch.ones(3, device='ocl:1')\n"
        "one.copy_(two * 2)\n"
        "print(one.tolist())\n"
        "torch.ocl.set_device(1)\n"
        "print(torch.ones(1, device='ocl').device)\n"
        "for call in (torch.add, lambda *both: torch.cat(both)):\n"
        "    try: call(one, two)\n"
        "    except RuntimeError as error: print(error)\n",
        POCL_DEVICES="pthread basic",
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[:2] == ["[2.0, 2.0, 2.0]", "ocl:1"]
    assert len(lines) == 4
    assert all("at least two devices, ocl:0 and ocl:1" in one for one in lines[2:])


def test_a_file_is_read_where_there_is_no_opencl(tmp_path):
    path = tmp_path / "x.pt"
    torch.save(torch.arange(3.0, device="ocl"), path)
    read = "import sys, torch; print(torch.load(sys.argv[1], map_location='cpu'))"
    done = run("-c", read, str(path))
    assert done.stdout == "tensor([0., 1., 2.])\n", done.stderr


FORKING = """
import os, sys, torch, cputrain.opencl
x = torch.arange(3.0).to("ocl")
if os.fork() == 0:
    for use in (lambda: x + 1, lambda: x.cpu(), lambda: torch.zeros(3, device="ocl")):
        try:
            use()
        except RuntimeError as error:
            assert "'spawn' start method" in str(error)
        else:
            sys.exit(5)
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.wait()[1]), (x + 1).tolist())
"""


def test_a_forked_child_is_told_so_and_ends():
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.strip() == "7 [1.0, 2.0, 3.0]", done.stderr


def run(*words, **variables):
    environment = {name: value for name, value in os.environ.items() if name != "OCL_ICD_VENDORS"}
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, check=False,
        env={**environment, **variables},
    )  # fmt: skip
