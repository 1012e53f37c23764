"""Which OpenCL drivers are installed, read as an ICD loader reads them, without loading one.

A loader (libOpenCL.so) finds its drivers in three places:

    OCL_ICD_FILENAMES       libraries between colons, before all others (Khronos's loader)
    OCL_ICD_VENDORS         another folder, one .icd file or one library (ocl-icd) instead of:
    /etc/OpenCL/vendors     files ending in .icd; the first line of each names a library

A library named without a folder is searched for where the dynamic linker would look.
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
    """Whose OpenCL a library holds, guessed from its name."""

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


GUESSES = (
    ("pocl", Implementation.POCL),
    ("nvidia", Implementation.NVIDIA),
    ("amdocl", Implementation.AMD),
    ("igdrcl", Implementation.INTEL),
    ("intel", Implementation.INTEL),
    ("rusticl", Implementation.MESA),
    ("mesa", Implementation.MESA),
)


class OpenCLDriver(Record):
    """One OpenCL driver that is installed, or that something says is."""

    name: str | None
    """The file name of its .icd file; None where none names it."""

    library: str
    """The library, as it is named: with its folder, or to be searched for."""

    found: bool
    """Whether the library is there."""

    guess: Implementation
    """Whose it is, guessed from the library's name."""

    note: str = ""
    """What is out of the ordinary: what is missing, or where it is named instead."""


def read_opencl_drivers(source: Source) -> tuple[OpenCLDriver, ...]:
    """Every OpenCL driver, in the order in which a loader meets them."""
    libraries = _Libraries(source)
    environment = source.environment()
    found = [
        _driver(libraries, None, library, "named by OCL_ICD_FILENAMES")
        for library in environment.get("OCL_ICD_FILENAMES", "").split(":")
        if library
    ]
    # OPENCL_VENDOR_PATH is ocl-icd's older name for the same folder.
    vendors = environment.get("OCL_ICD_VENDORS") or environment.get("OPENCL_VENDOR_PATH")
    found.extend(_from_vendors(source, libraries, vendors or ICD_FOLDER))
    named = {driver.library.rpartition("/")[2] for driver in found}
    if not any(name.startswith("libnvidia-opencl.so") for name in named):
        found.extend(_nvidia_without_file(libraries))
    return tuple(found)


class _Libraries:
    """The folders in which the dynamic linker looks, each listed once and when first needed."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.listed: dict[str, frozenset[str]] = {}
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
            if name.endswith("-linux-gnu") and not name.startswith("i"):  # i386: not for us
                yield f"/usr/lib/{name}"

    def hold(self, path: str, hops: int = 8) -> bool:
        """Whether there is a file at this absolute path, symbolic links followed."""
        folder, _, name = path.rpartition("/")
        if folder not in self.listed:
            self.listed[folder] = frozenset(self.source.names(folder or "/"))
        if name not in self.listed[folder]:
            return False
        target = self.source.link(path)
        if target is None:
            return True
        return hops > 0 and self.hold(os.path.normpath(os.path.join(folder, target)), hops - 1)

    def where(self, name: str) -> str | None:
        """The folder in which the linker would find a library."""
        return next((folder for folder in self.folders if self.hold(f"{folder}/{name}")), None)


def _from_vendors(source: Source, libraries: _Libraries, vendors: str) -> Iterator[OpenCLDriver]:
    """The drivers of a folder; or of one file, or one library, as ocl-icd reads the variable."""
    last = vendors.rpartition("/")[2]
    if vendors.endswith(".icd"):
        path = vendors if "/" in vendors else f"{ICD_FOLDER}/{vendors}"
        yield _from_file(source, libraries, path)
    elif ".so" in last and not (vendors.startswith("/") and source.names(vendors)):
        yield _driver(libraries, None, vendors, "named by OCL_ICD_VENDORS")
    elif vendors.startswith("/") and vendors.isprintable():
        folder = vendors.rstrip("/")
        for name in source.names(folder):
            if name.endswith(".icd"):
                yield _from_file(source, libraries, f"{folder}/{name}")


def _from_file(source: Source, libraries: _Libraries, path: str) -> OpenCLDriver:
    name = path.rpartition("/")[2]
    content = text(source, path, 1 << 12) if path.startswith("/") else None
    if content is None:
        return _absent(name, f"{path} cannot be read")
    if not content:
        return _absent(name, f"{path} is empty: it should name a library")
    return _driver(libraries, name, content.splitlines()[0].strip())


def _absent(name: str, note: str) -> OpenCLDriver:
    return OpenCLDriver(name=name, library="", found=False, guess=Implementation.OTHER, note=note)


def _driver(libraries: _Libraries, name: str | None, library: str, note: str = "") -> OpenCLDriver:
    if not library.isprintable():
        found, missing = False, "what is named is no library's name"
    elif library.startswith("/"):
        found, missing = libraries.hold(library), "the file it names is absent"
    elif "/" in library:
        found, missing = False, "the path it names is relative, so it depends on where one stands"
    else:
        found = libraries.where(library) is not None
        missing = "the library it names is in none of the linker's folders"
    return OpenCLDriver(
        name=name,
        library=library,
        found=found,
        guess=_guess(library),
        note=note if found else "; ".join(filter(None, (note, missing))),
    )


def _guess(library: str) -> Implementation:
    name = library.rpartition("/")[2].lower()
    return next((whose for part, whose in GUESSES if part in name), Implementation.OTHER)


def _nvidia_without_file(libraries: _Libraries) -> Iterator[OpenCLDriver]:
    """NVIDIA's driver where its library was mounted and its .icd file was not, as in containers."""
    folder, library = libraries.where(NVIDIA_LIBRARY), NVIDIA_LIBRARY
    if folder is None:
        folder, library = NVIDIA_FOLDER, "libOpenCL.so.1"
        if not libraries.hold(f"{folder}/{library}"):
            return
    yield OpenCLDriver(
        name=None,
        library=f"{folder}/{library}",
        found=True,
        guess=Implementation.NVIDIA,
        note="no .icd file names it: set OCL_ICD_FILENAMES to it, or write one",
    )
