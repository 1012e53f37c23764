"""Installed OpenCL drivers, found as an ICD loader finds them, without loading a driver.

An ICD loader (libOpenCL.so) finds drivers in three places:

    OCL_ICD_FILENAMES       libraries separated by colons, first of all (Khronos's loader)
    OCL_ICD_VENDORS         a folder, an .icd file or a library (ocl-icd) to use instead of:
    /etc/OpenCL/vendors     .icd files; the first line of each names a library

A library named without a folder is searched for in the dynamic linker's folders.
"""

from __future__ import annotations

import os
from enum import StrEnum

from cputrain.machine.source import text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.machine.source import Source

ICD_FOLDER = "/etc/OpenCL/vendors"
NVIDIA_FOLDER = "/usr/local/nvidia/lib64"
NVIDIA_LIBRARY = "libnvidia-opencl.so.1"
LIBRARY_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib", NVIDIA_FOLDER)


class Implementation(StrEnum):
    """OpenCL implementation of a driver library, guessed from the library's name."""

    POCL = "pocl"
    """The CPU itself: libpocl.so.2."""

    NVIDIA = "nvidia"
    """NVIDIA's GPUs: libnvidia-opencl.so.1."""

    AMD = "amd"
    """AMD's GPUs, ROCm's: libamdocl64.so."""

    INTEL = "intel"
    """Intel's GPUs (libigdrcl.so) or its runtime for CPUs (libintelocl.so)."""

    MESA = "mesa"
    """Any GPU that Mesa drives: libRusticlOpenCL.so.1, or clover's libMesaOpenCL.so.1."""

    OTHER = "other"
    """None of these: libxilinxopencl.so."""


IMPLEMENTATIONS = (
    ("pocl", Implementation.POCL),
    ("nvidia", Implementation.NVIDIA),
    ("amdocl", Implementation.AMD),
    ("igdrcl", Implementation.INTEL),
    ("intel", Implementation.INTEL),
    ("rusticl", Implementation.MESA),
    ("mesa", Implementation.MESA),
)


class OpenCLDriver(Record):
    """An OpenCL driver that an .icd file or environment variable names, installed or not."""

    name: str | None
    """Name of the .icd file; None if no .icd file names the driver."""

    library: str
    """Library as named: a path, or a file name that the dynamic linker searches for."""

    found: bool
    """Whether the library exists."""

    guess: Implementation
    """Implementation, guessed from the library's name."""

    note: str = ""
    """What is missing, or where the driver is named if not in an .icd file; else empty."""


def read_opencl_drivers(source: Source) -> tuple[OpenCLDriver, ...]:
    """Return the OpenCL drivers in the order in which an ICD loader finds them."""
    libraries = _Libraries(source)
    environment = source.environment()
    drivers = [
        _driver(libraries, None, library, "named by OCL_ICD_FILENAMES")
        for library in environment.get("OCL_ICD_FILENAMES", "").split(":")
        if library
    ]
    # OPENCL_VENDOR_PATH is ocl-icd's older name for the same folder.
    vendors = environment.get("OCL_ICD_VENDORS") or environment.get("OPENCL_VENDOR_PATH")
    drivers.extend(_drivers_of_vendors(source, libraries, vendors or ICD_FOLDER))
    names = {driver.library.rpartition("/")[2] for driver in drivers}
    if not any(name.startswith("libnvidia-opencl.so") for name in names):
        drivers.extend(_unlisted_nvidia_driver(libraries))
    return tuple(drivers)


class _Libraries:
    """Library search in the dynamic linker's folders, each listed once, on first use."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.entries: dict[str, frozenset[str]] = {}
        self.folders = tuple(dict.fromkeys(self._folders()))

    def _folders(self) -> Iterator[str]:
        for folder in self.source.environment().get("LD_LIBRARY_PATH", "").split(":"):
            if folder.startswith("/"):
                yield folder
        for name in self.source.names("/etc/ld.so.conf.d"):
            for line in (text(self.source, f"/etc/ld.so.conf.d/{name}") or "").splitlines():
                if line.startswith("/") and line.isprintable():
                    yield line.strip()
        yield from LIBRARY_FOLDERS
        for name in self.source.names("/usr/lib"):
            if name.endswith("-linux-gnu") and not name.startswith("i"):  # skip i386
                yield f"/usr/lib/{name}"

    def contains(self, path: str, hops: int = 8) -> bool:
        """Return whether a file exists at an absolute path, following up to `hops` links."""
        folder, _, name = path.rpartition("/")
        if folder not in self.entries:
            self.entries[folder] = frozenset(self.source.names(folder or "/"))
        if name not in self.entries[folder]:
            return False
        target = self.source.link(path)
        if target is None:
            return True
        return hops > 0 and self.contains(os.path.normpath(os.path.join(folder, target)), hops - 1)

    def folder_of(self, name: str) -> str | None:
        """Return the folder in which the linker would find a library; None without one."""
        return next((folder for folder in self.folders if self.contains(f"{folder}/{name}")), None)


def _drivers_of_vendors(
    source: Source, libraries: _Libraries, vendors: str
) -> Iterator[OpenCLDriver]:
    """Yield the drivers of OCL_ICD_VENDORS: a folder, an .icd file or a library, as in ocl-icd."""
    last = vendors.rpartition("/")[2]
    if vendors.endswith(".icd"):
        path = vendors if "/" in vendors else f"{ICD_FOLDER}/{vendors}"
        yield _driver_of_file(source, libraries, path)
    elif ".so" in last and not (vendors.startswith("/") and source.names(vendors)):
        yield _driver(libraries, None, vendors, "named by OCL_ICD_VENDORS")
    elif vendors.startswith("/") and vendors.isprintable():
        folder = vendors.rstrip("/")
        for name in source.names(folder):
            if name.endswith(".icd"):
                yield _driver_of_file(source, libraries, f"{folder}/{name}")


def _driver_of_file(source: Source, libraries: _Libraries, path: str) -> OpenCLDriver:
    name = path.rpartition("/")[2]
    content = text(source, path, 1 << 12) if path.startswith("/") else None
    if content is None:
        return _missing_driver(name, f"{path} cannot be read")
    if not content:
        return _missing_driver(name, f"{path} is empty: it should name a library")
    return _driver(libraries, name, content.splitlines()[0].strip())


def _missing_driver(name: str, note: str) -> OpenCLDriver:
    return OpenCLDriver(name=name, library="", found=False, guess=Implementation.OTHER, note=note)


def _driver(libraries: _Libraries, name: str | None, library: str, note: str = "") -> OpenCLDriver:
    if not library.isprintable():
        is_found, problem = False, "the name contains unprintable characters"
    elif library.startswith("/"):
        is_found, problem = libraries.contains(library), "the file it names is absent"
    elif "/" in library:
        is_found, problem = False, "the path it names is relative to the working directory"
    else:
        is_found = libraries.folder_of(library) is not None
        problem = "the library it names is in none of the linker's folders"
    return OpenCLDriver(
        name=name,
        library=library,
        found=is_found,
        guess=_guess_implementation(library),
        note=note if is_found else "; ".join(filter(None, (note, problem))),
    )


def _guess_implementation(library: str) -> Implementation:
    name = library.rpartition("/")[2].lower()
    return next(
        (implementation for part, implementation in IMPLEMENTATIONS if part in name),
        Implementation.OTHER,
    )


def _unlisted_nvidia_driver(libraries: _Libraries) -> Iterator[OpenCLDriver]:
    """Yield NVIDIA's driver if its library exists without an .icd file, as in containers."""
    folder, library = libraries.folder_of(NVIDIA_LIBRARY), NVIDIA_LIBRARY
    if folder is None:
        folder, library = NVIDIA_FOLDER, "libOpenCL.so.1"
        if not libraries.contains(f"{folder}/{library}"):
            return
    yield OpenCLDriver(
        name=None,
        library=f"{folder}/{library}",
        found=True,
        guess=Implementation.NVIDIA,
        note="no .icd file names it: set OCL_ICD_FILENAMES to its path, or write an .icd file",
    )
