"""C library, allocators that can be preloaded, and compute drivers of GPUs."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

LIBRARY_FOLDERS = (
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
    """Return the version of glibc; None for another C library or if unknown."""
    name, _, version = (source.libc() or "").partition(" ")
    parts = version.split(".")
    if name != "glibc" or len(parts) < 2 or not all(part.isdecimal() for part in parts[:2]):
        return None
    return int(parts[0]), int(parts[1])


def read_preloads(source: Source) -> dict[str, str]:
    """Return the path of each installed allocator, the first that the dynamic linker would find."""
    # Debian installs only the versioned name; the plain ".so" comes with development packages.
    folders = [*LIBRARY_FOLDERS]
    for variable in ("CONDA_PREFIX", "VIRTUAL_ENV"):
        prefix = source.environment().get(variable)
        if prefix:
            folders.insert(0, f"{prefix}/lib")
    paths = {}
    for name, files in ALLOCATORS.items():
        for path in (f"{folder}/{file}" for folder in folders for file in files):
            if source.raw(path, 4) == b"\x7fELF":
                paths[name] = path
                break
    return paths


def read_gpu_driver(source: Source) -> str:
    """Return the loaded compute driver of a GPU, or "" without one; cheaper than listing GPUs."""
    if source.raw("/proc/driver/nvidia/version", 1) is not None:
        return "NVIDIA's driver"
    if source.names("/sys/class/kfd/kfd/topology/nodes")[1:]:
        return "AMD's compute driver"
    return ""
