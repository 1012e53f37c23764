"""PyOpenCL with all installed drivers: those of the system, of pip, and those without .icd file.

PyOpenCL's ICD loader reads one vendors folder, once. This module writes that folder: it lists the
system's drivers and every other driver that can be loaded.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import warnings
from importlib.util import find_spec

from cputrain.errors import CputrainError
from cputrain.machine.cache import cache_folder
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

VENDORS_VARIABLE = "OCL_ICD_VENDORS"
"""Environment variable of the ICD loader: the vendors folder. A value set by the user is kept."""

SYSTEM_VENDORS_FOLDER = "/etc/OpenCL/vendors"

UNLISTED_LIBRARIES = (
    "libnvidia-opencl.so.1",
    "libamdocl64.so",
    "libigdrcl.so",
    "libRusticlOpenCL.so.1",
    "libintelocl.so",
)
"""Driver libraries often installed without an .icd file, as in containers with CUDA."""


def cl() -> ModuleType:
    """Import and return PyOpenCL with all installed drivers registered."""
    if find_spec("pyopencl") is None:
        raise CputrainError(
            "cputrain.opencl", "needs PyOpenCL", found="an environment without it",
            do='pip install "cputrain[opencl]"',
        )  # fmt: skip
    if "PYOPENCL_LOADED" not in _initialized:
        _initialized.add("PYOPENCL_LOADED")
        _write_vendors_folder()
    import pyopencl

    # some drivers print build output for every program
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    return pyopencl


_initialized: set[str] = set()


def _write_vendors_folder() -> None:
    """Write the vendors folder, unless the system's folder lists every driver."""
    if VENDORS_VARIABLE in os.environ:
        return
    listed = {
        name: _read_line(os.path.join(SYSTEM_VENDORS_FOLDER, name))
        for name in _icd_files(SYSTEM_VENDORS_FOLDER)
    }
    unlisted = [
        name
        for name in UNLISTED_LIBRARIES
        if not _is_listed(name, listed.values()) and _can_load(name)
    ]
    if not unlisted:
        return  # the ICD loader finds the drivers of the system and of pip by itself
    folder = os.path.join(cache_folder(), "opencl", "vendors")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    lines = {**listed, **{f"{name}.icd": name for name in unlisted}}
    for stale in set(_icd_files(folder)) - lines.keys():
        os.unlink(os.path.join(folder, stale))
    for name, line in lines.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(line + "\n")
    os.environ[VENDORS_VARIABLE] = folder


def _icd_files(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".icd"))
    except OSError:
        return []


def _read_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_listed(library: str, lines: object) -> bool:
    stem = library.partition(".so")[0]
    return any(stem in line for line in lines)  # type: ignore[attr-defined]


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


class OpenCLDevice(Record):
    """Properties of an OpenCL device; its list index is its index as torch's "ocl" device."""

    name: str
    """Name given by the driver."""

    platform: str
    """Name of the OpenCL platform."""

    version: str
    """The OpenCL version and the driver version."""

    kind: str
    """Kind of device: "GPU", "CPU" or "accelerator"."""

    units: int
    """Number of compute units."""

    memory_bytes: int
    """Global memory in bytes."""

    largest_tensor_bytes: int
    """The largest size of one allocation (CL_DEVICE_MAX_MEM_ALLOC_SIZE), in bytes."""

    local_bytes: int
    """Local memory of a work-group, in bytes."""

    shares_memory: bool
    """Whether the device uses host memory, so that no transfers are needed."""

    float64: bool
    """Whether the device supports double precision."""

    float16: bool
    """Whether the device supports half precision."""


LIST_TIMEOUT_S = 60.0
"""Timeout for listing devices, in seconds."""


def read_opencl_devices() -> tuple[list[OpenCLDevice], str]:
    """Return the OpenCL devices, GPUs first, or an empty list and the reason.

    Drivers are loaded in a subprocess, so that a crashing driver does not end this process.
    """
    if find_spec("pyopencl") is None:
        return [], 'PyOpenCL is not installed: pip install "cputrain[opencl]"'
    try:
        process = subprocess.run(
            [sys.executable, "-m", "cputrain.machine.opencl"],
            capture_output=True, text=True, timeout=LIST_TIMEOUT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return [], f"OpenCL drivers did not list their devices within {LIST_TIMEOUT_S:.0f} s"
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["no error message"])[-1]
        return [], f"listing OpenCL devices failed with exit code {process.returncode}: {last_line}"
    return [OpenCLDevice(**fields) for fields in json.loads(process.stdout)], ""


def list_devices() -> list[Any]:
    """Return PyOpenCL's device objects, GPUs first."""
    try:
        platforms = cl().get_platforms()
    except cl().LogicError:  # no platform is installed
        platforms = []
    devices = []
    for platform in platforms:
        try:
            devices += platform.get_devices()
        except cl().RuntimeError:  # a driver without a device
            continue
    return sorted(devices, key=lambda device: not device.type & cl().device_type.GPU)


def shares_memory(device: Any) -> bool:
    """Return whether a PyOpenCL device uses host memory."""
    return bool(device.type & cl().device_type.CPU) or bool(device.host_unified_memory)


def _describe(device: Any) -> OpenCLDevice:
    kinds = cl().device_type
    extensions = device.extensions.split()
    return OpenCLDevice(
        name=" ".join(str(device.name).split()),
        platform=str(device.platform.name).strip(),
        version=f"{' '.join(device.version.split()[:2])}, driver {device.driver_version.strip()}",
        kind="GPU" if device.type & kinds.GPU else "CPU" if device.type & kinds.CPU
        else "accelerator",
        units=int(device.max_compute_units),
        memory_bytes=int(device.global_mem_size),
        largest_tensor_bytes=int(device.max_mem_alloc_size),
        local_bytes=int(device.local_mem_size),
        shares_memory=shares_memory(device),
        float64="cl_khr_fp64" in extensions,
        float16="cl_khr_fp16" in extensions,
    )  # fmt: skip


if __name__ == "__main__":
    print(json.dumps([_describe(device).as_json() for device in list_devices()]))
