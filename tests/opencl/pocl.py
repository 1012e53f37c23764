"""PoCL compiles for a processor that its compiler does not know."""

from __future__ import annotations

import ctypes
import time
from types import SimpleNamespace

import pytest

from cputrain.machine.opencl import cl, list_devices
from cputrain.opencl import pocl


@pytest.fixture
def device():
    for one in list_devices():
        if one.platform.name == pocl.PLATFORM and one.type & cl().device_type.CPU:
            return one
    pytest.skip("needs an OpenCL device of PoCL's")


@pytest.fixture
def unknown(device):
    """The same device, whose processor its compiler does not know."""
    names = [device.version.rpartition("-gnu-")[2].encode(), *(name for name, _ in pocl.PROCESSORS)]
    places = [pocl.address_of_name(int(device.int_ptr), name + b"\0") for name in names]
    place = next(one for one in places if one is not None)
    pointer = ctypes.c_void_p.from_address(place)
    before, other = pointer.value, ctypes.create_string_buffer(pocl.UNKNOWN_PROCESSOR[:-1])
    pointer.value = ctypes.addressof(other)
    yield SimpleNamespace(
        platform=device.platform, version="OpenCL 3.0 PoCL HSTR: x86_64-unknown-linux-gnu-generic",
        int_ptr=device.int_ptr,
    )  # fmt: skip
    pointer.value = before


def compiles(device):
    source = f"__kernel void f(__global float* x) {{ x[0] = exp(x[0]); }} // {time.time_ns()}"
    cl().Program(cl().Context([device]), source).build(cache_dir=False)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("flags", [None, frozenset(), pocl.PROCESSORS[1][1]])
def test_a_processor_without_a_name_is_given_one(device, unknown, flags):
    with pytest.raises(cl().RuntimeError, match="unknown target CPU"):
        compiles(device)
    assert pocl.name_processor(unknown, flags) in {name for name, _ in pocl.PROCESSORS}
    compiles(device)
    assert pocl.name_processor(unknown) is None


def test_other_devices_are_left_alone(device):
    there = {"platform": device.platform, "version": device.version, "int_ptr": 0}
    other = SimpleNamespace(name="NVIDIA CUDA")
    assert pocl.name_processor(SimpleNamespace(**{**there, "platform": other})) is None
    assert pocl.name_processor(SimpleNamespace(**{**there, "version": "1-haswell"})) is None
