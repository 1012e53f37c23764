"""Compile OpenCL programs: once for each device, source and definitions, cached on disk."""

from __future__ import annotations

import os
import re
import time
from functools import lru_cache
from importlib.resources import files

from cputrain.errors import CputrainError
from cputrain.machine.cache import cache_folder
from cputrain.machine.opencl import cl
from cputrain.opencl.device import set_argument_types

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.opencl.device import Device


@lru_cache
def _read_kernel_file(name: str) -> str:
    return files("cputrain.opencl").joinpath(f"kernels/{name}.cl").read_text(encoding="utf-8")


def program_source(name: str, definitions: Mapping[str, Any]) -> str:
    """Return the source of kernels/`name`.cl, preceded by definitions."""
    lines = [f"#define {key} {value}\n" for key, value in definitions.items()]
    return "".join(lines) + _read_kernel_file(name)


MAX_ERRORS = 3
"""Maximum number of compiler errors that an error message quotes."""

DOUBLE = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"
"""Pragma that enables double in OpenCL C."""


@lru_cache(maxsize=4096)
def compile_kernel(device: Device, source: str, name: str, types: tuple[Any, ...]) -> Any:
    """Compile a program and return a kernel of it.

    Args:
        device: Device to compile for.
        source: OpenCL C source of the program.
        name: Name of the kernel function.
        types: NumPy dtypes of its scalar arguments; None for buffers.

    Raises:
        CputrainError: The program does not compile.
    """
    folder = os.path.join(cache_folder(), "opencl", "programs")
    full_source = _read_kernel_file("elements") + source
    if device.has_double:
        full_source = DOUBLE + full_source
    opencl: Any = cl()
    # the caches of PyOpenCL and the driver may be corrupt: then compile a text that is in neither
    for text in (full_source, f"{full_source}typedef int again_{time.time_ns()};\n"):
        try:
            kernel = getattr(opencl.Program(device.context, text).build(cache_dir=folder), name)
            set_argument_types(kernel, types, written_arguments(full_source, name, len(types)))
        except Exception as error:  # (a corrupt cache may raise anything)
            build_error: Exception = error
            opencl._PYOPENCL_NO_CACHE = True
        else:
            return kernel
    raise CputrainError(
        f"an OpenCL program on {device.name}", "must compile", found=_compiler_errors(build_error),
        do="Install a newer driver (for a CPU, pip install intel-opencl-rt), or report it with the "
        "driver's version, which cputrain info prints.",
    ) from build_error  # fmt: skip


def written_arguments(source: str, name: str, count: int) -> tuple[bool, ...]:
    """Return which arguments a kernel may write to: buffers that are not declared const.

    All of them may be where the declaration is made of macros.
    """
    declaration = re.search(rf"\b{name}\s*\(([^{{]*)\)\s*\{{", source)
    declared = declaration[1].split(",") if declaration else []
    if len(declared) != count:
        return (True,) * count
    return tuple("*" in each and "const" not in each.partition("*")[0] for each in declared)


def _compiler_errors(build_error: Exception) -> str:
    """Return the errors in a compiler's log, without its warnings and the program's source."""
    lines = dict.fromkeys(" ".join(line.split()) for line in str(build_error).splitlines())
    errors = [line for line in lines if "error:" in line] or list(lines)
    return "; ".join(errors[:MAX_ERRORS])
