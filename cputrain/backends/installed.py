"""Versions and libraries of installed packages, read without importing them."""

from __future__ import annotations

import ctypes
import glob
import os
from importlib import metadata
from importlib.util import find_spec

TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so")
"""Torch's libraries that extensions link to, in loading order."""


def installed_version(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def library_error(module: str) -> str:
    """Return why a module's libraries cannot be loaded with torch's; empty if they can.

    This reports a missing symbol in a fraction of the time that the failing import would take.
    """
    torch_folder, module_folder = (_folder(name) for name in ("torch", module))
    if module_folder is None:
        return f"its package is installed, but there is no module {module}"
    if torch_folder is None:
        return "torch is not installed"
    try:
        for name in TORCH_LIBRARIES:
            ctypes.CDLL(os.path.join(torch_folder, "lib", name), mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
        for path in (*glob.glob(f"{module_folder}/*.so"), *glob.glob(f"{module_folder}/lib/*.so")):
            ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        text = str(error)
        return f"its library is incompatible with this torch: {os.path.basename(text)[:200]}"
    return ""


def _folder(module: str) -> str | None:
    spec = find_spec(module)
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return folders[0] if folders else None
