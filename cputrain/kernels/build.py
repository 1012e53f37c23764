"""Compile a C file of this folder for this machine, once, and load it.

A library lies in the user's cache under a name that depends on the source, the compiler and the
CPU's instructions: a home folder may be shared by machines, and a compiler may be replaced.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile

from cputrain.machine.cache import cache_folder

COMPILERS = ("cc", "gcc", "clang")

FLAGS = ("-O3", "-fPIC", "-shared", "-fno-math-errno", "-fno-trapping-math")

NATIVE = {"x86_64": ("-march=native",), "aarch64": ("-mcpu=native",)}
"""Flags for the instructions of this CPU, by architecture."""

TIME_LIMIT_S = 60


class BuildError(Exception):
    """A library cannot be compiled or loaded; the message says why."""


def find_compiler() -> str | None:
    """Return the path of the C compiler: what CC names, or the first that is installed."""
    named = os.environ.get("CC", "")
    return next(filter(None, map(shutil.which, [named] if named else COMPILERS)), None)


def load(name: str) -> ctypes.CDLL:
    """Return the library of the source `name`.c; compile it unless the cache has it.

    Raises BuildError.
    """
    compiler = find_compiler()
    if compiler is None:
        names = os.environ.get("CC") or ", ".join(COMPILERS)
        raise BuildError(f"there is no C compiler ({names})")
    source = os.path.join(os.path.dirname(__file__), f"{name}.c")
    flags = (*FLAGS, *NATIVE.get(platform.machine(), ()))
    try:
        path = os.path.join(cache_folder(), "kernels", f"{name}-{_key(source, compiler, flags)}.so")
        if not os.path.exists(path):
            _compile(compiler, flags, source, path)
        return ctypes.CDLL(path)
    except OSError as error:
        where = error.filename or os.path.join(cache_folder(), "kernels")
        raise BuildError(f"{where}: {error.strerror or error}") from None


def _key(source: str, compiler: str, flags: tuple[str, ...]) -> str:
    program = os.stat(os.path.realpath(compiler))
    parts = (_cpu_instructions(), compiler, str(program.st_size), str(program.st_mtime_ns), *flags)
    key = hashlib.sha256("\n".join(parts).encode())
    for path in (source, os.path.join(os.path.dirname(source), "vectors.h")):
        with open(path, "rb") as file:
            key.update(file.read())
    return key.hexdigest()[:32]


def _cpu_instructions() -> str:
    """Return the instructions of the first CPU, as the kernel lists them."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line for line in file if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, flags: tuple[str, ...], source: str, path: str) -> None:
    folder = os.path.dirname(path)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        library = os.path.join(temporary, "library.so")
        command = [compiler, *flags, source, "-o", library, "-lm"]
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=TIME_LIMIT_S,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines() or [f"exit code {error.returncode}"]
            raise BuildError(f"{compiler} cannot compile it ({lines[0]})") from None
        except subprocess.TimeoutExpired:
            raise BuildError(f"{compiler} took more than {TIME_LIMIT_S} s") from None
        os.replace(library, path)  # other processes may compile it at the same time
