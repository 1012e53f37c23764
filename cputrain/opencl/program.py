"""Programs: source and what is defined for it, built once for a device and kept on disk."""

from __future__ import annotations

import os
from functools import lru_cache

from cputrain.errors import CputrainError
from cputrain.machine.cache import cache_folder
from cputrain.opencl.platforms import cl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device


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
