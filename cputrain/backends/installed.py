"""Versions and libraries of installed packages, read without importing them."""

from __future__ import annotations

import ctypes
import glob
import os
from importlib import metadata
from importlib.util import find_spec

OF_TORCH = ("libc10.so", "libtorch_cpu.so", "libtorch.so", "libtorch_python.so")
"""What a library made for torch is linked to; in this order."""


def version_of(package: str) -> str:
    """Empty where it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def libraries_load(module: str) -> str:
    """Why a module's libraries cannot be loaded beside torch's, if they cannot.

    A symbol that is missing shows here, a second before an import would end with it.
    """
    torch, ours = (_folder(name) for name in ("torch", module))
    if ours is None:
        return f"its package is installed, and there is no module {module}"
    if torch is None:
        return "torch is not installed"
    try:
        for name in OF_TORCH:
            ctypes.CDLL(os.path.join(torch, "lib", name), mode=os.RTLD_GLOBAL | os.RTLD_LAZY)
        for path in (*glob.glob(f"{ours}/*.so"), *glob.glob(f"{ours}/lib/*.so")):
            ctypes.CDLL(path, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as error:
        text = str(error)
        return f"its library does not fit this torch: {os.path.basename(text)[:200]}"
    return ""


def _folder(module: str) -> str | None:
    spec = find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    return places[0] if places else None
