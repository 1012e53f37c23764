"""Programs: source and what is defined for it, built once for a device and kept on disk."""

from __future__ import annotations

import os
from functools import lru_cache
from importlib.resources import files

from cputrain.errors import CputrainError
from cputrain.machine.cache import cache_folder
from cputrain.machine.opencl import cl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from cputrain.opencl.device import Device


@lru_cache
def _file(name: str) -> str:
    return files("cputrain.opencl").joinpath(f"kernels/{name}.cl").read_text(encoding="utf-8")


def text_of(name: str, defined: Mapping[str, Any]) -> str:
    """A file of kernels, with these names defined before it."""
    lines = [f"#define {key} {value}\n" for key, value in defined.items()]
    return "".join(lines) + _file(name)


DOUBLE = "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n"


@lru_cache(maxsize=4096)
def kernel_of(device: Device, source: str, name: str, types: tuple[Any, ...]) -> Any:
    """A kernel, with the types of its scalar arguments: None for memory."""
    folder = os.path.join(cache_folder(), "opencl", "programs")
    program = cl().Program(device.context, DOUBLE + source if device.has_double else source)
    try:
        built = program.build(cache_dir=folder)
    except cl().RuntimeError as error:
        raise CputrainError(
            f"an OpenCL program on {device.name}", "must compile", found=f"\n{error}\n{source}",
            do="Report it with the driver's version: clinfo prints that.",
        ) from error  # fmt: skip
    found = getattr(built, name)
    found.set_scalar_arg_dtypes(list(types))
    return found
