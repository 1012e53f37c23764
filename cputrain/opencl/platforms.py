"""Where OpenCL drivers are: the system's, those of pip, and a GPU's own beside its bare driver.

The loader that comes with PyOpenCL reads one folder of names of drivers, once. So that folder is
ours: it names those of the system and all others that can be loaded here.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from importlib.util import find_spec

from cputrain.errors import CputrainError
from cputrain.machine.cache import cache_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

VARIABLE = "OCL_ICD_VENDORS"
"""The loader's: a folder. Whoever has set it has chosen."""

SYSTEMS = "/etc/OpenCL/vendors"

BARE = (
    "libnvidia-opencl.so.1",
    "libamdocl64.so",
    "libigdrcl.so",
    "libRusticlOpenCL.so.1",
    "libintelocl.so",
)
"""Drivers that are often there without a file that names them: in containers, beside CUDA."""


def cl() -> ModuleType:
    """PyOpenCL, with every driver that is here."""
    if find_spec("pyopencl") is None:
        raise CputrainError(
            "cputrain.opencl", "needs PyOpenCL", found="an environment without it",
            do='pip install "cputrain[opencl]"',
        )  # fmt: skip
    if "PYOPENCL_LOADED" not in _done:
        _done.add("PYOPENCL_LOADED")
        _name_drivers()
    import pyopencl

    # some drivers have something to say of every program
    warnings.filterwarnings("ignore", category=pyopencl.CompilerWarning)
    return pyopencl


_done: set[str] = set()


def _name_drivers() -> None:
    """Write the folder, unless the system's has all there are."""
    if VARIABLE in os.environ:
        return
    named = {name: _line(os.path.join(SYSTEMS, name)) for name in _listed(SYSTEMS)}
    others = [name for name in BARE if not _is_named(name, named.values()) and _loads(name)]
    if not others:
        return  # the loader finds the system's, and pip's, by itself
    folder = os.path.join(cache_folder(), "opencl", "vendors")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    wanted = {**named, **{f"{name}.icd": name for name in others}}
    for stale in set(_listed(folder)) - wanted.keys():
        os.unlink(os.path.join(folder, stale))
    for name, line in wanted.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
            file.write(line + "\n")
    os.environ[VARIABLE] = folder


def _listed(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(".icd"))
    except OSError:
        return []


def _line(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _is_named(library: str, lines: object) -> bool:
    stem = library.partition(".so")[0]
    return any(stem in line for line in lines)  # type: ignore[attr-defined]


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
