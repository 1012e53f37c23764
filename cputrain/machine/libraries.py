"""The C library and the allocators that could be loaded before it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/powerpc64le-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/local/lib",
    "/usr/local/lib64",
)

ALLOCATORS = {
    "tcmalloc": ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libtcmalloc_minimal.so"),
    "jemalloc": ("libjemalloc.so.2", "libjemalloc.so"),
    "mimalloc": ("libmimalloc.so.2", "libmimalloc.so.3", "libmimalloc.so"),
}


def read_libc(source: Source) -> tuple[int, int] | None:
    """The version of glibc; None for another C library."""
    name, _, version = (source.libc() or "").partition(" ")
    parts = version.split(".")
    if name != "glibc" or len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


def read_preloads(source: Source) -> dict[str, str]:
    """Allocators in the usual folders, the one the loader would find first."""
    # distributions install the versioned name alone: looking for ".so" finds nothing on Debian
    folders = [*FOLDERS]
    for variable in ("CONDA_PREFIX", "VIRTUAL_ENV"):
        prefix = source.environment().get(variable)
        if prefix:
            folders.insert(0, f"{prefix}/lib")
    found = {}
    for name, files in ALLOCATORS.items():
        for path in (f"{folder}/{file}" for folder in folders for file in files):
            if source.raw(path, 4) == b"\x7fELF":
                found[name] = path
                break
    return found


def read_gpu_driver(source: Source) -> str:
    """The compute driver of a GPU that is loaded, or nothing; cheaper than asking which GPU."""
    if source.raw("/proc/driver/nvidia/version", 1) is not None:
        return "NVIDIA's driver"
    if source.names("/sys/class/kfd/kfd/topology/nodes")[1:]:
        return "AMD's compute driver"
    return ""
