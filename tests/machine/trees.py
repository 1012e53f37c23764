"""Machines made of text, for tests: a tree of files in memory, and what Linux would write in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cputrain.machine.cpulist import format_list

CPU = "/sys/devices/system/cpu"
NODE = "/sys/devices/system/node"
UNLIMITED_V1 = 9223372036854771712

Files = dict[str, str | bytes]


class Tree:
    """A source that answers from files held in memory."""

    live = False

    def __init__(
        self,
        *parts: Files,
        environment: Mapping[str, str] | None = None,
        links: Mapping[str, str] | None = None,
    ) -> None:
        self.files: Files = {path: content for part in parts for path, content in part.items()}
        self._environment = dict(environment or {})
        self._links = dict(links or {})
        self._folders: dict[str, set[str]] = {}
        for path in (*self.files, *self._links):
            while path not in ("", "/"):
                parent, _, name = path.rpartition("/")
                self._folders.setdefault(parent or "/", set()).add(name)
                path = parent

    def raw(self, path: str, limit: int = 1 << 20) -> bytes | None:
        found = self.files.get(path)
        if found is None:
            return None
        return (found.encode() if isinstance(found, str) else found)[:limit]

    def names(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(self._folders.get(path, ())))

    def link(self, path: str) -> str | None:
        return self._links.get(path)

    def environment(self) -> Mapping[str, str]:
        return self._environment

    def libc(self) -> str | None:
        return None

    def save(self, root: Path) -> Path:
        """The same files on disk, as a sysroot."""
        for path, content in self.files.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content.encode() if isinstance(content, str) else content)
        return root


def mask(cpus: Iterable[int]) -> str:
    """A mask as sysfs writes it: 32 bits a group, the highest first."""
    bits = sum(1 << cpu for cpu in set(cpus))
    groups = [
        f"{bits >> 32 * index & 0xFFFFFFFF:08x}" for index in range(1 + bits.bit_length() // 32)
    ]
    return ",".join(reversed(groups)) + "\n"


def threads_of(
    cores: Iterable[Iterable[int]], names: tuple[str, ...] = ("thread_siblings",)
) -> Files:
    """The topology files that say which CPUs make a core."""
    return {
        f"{CPU}/cpu{cpu}/topology/{name}": mask(core)
        for core in map(tuple, cores)
        for cpu in core
        for name in names
    }


def sockets_of(sockets: Iterable[Iterable[int]]) -> Files:
    """The topology files that say which CPUs make a package."""
    files: Files = {}
    for index, socket in enumerate(map(tuple, sockets)):
        for cpu in socket:
            files[f"{CPU}/cpu{cpu}/topology/core_siblings"] = mask(socket)
            files[f"{CPU}/cpu{cpu}/topology/physical_package_id"] = f"{index}\n"
    return files


def cache(
    level: int, index: int, domains: Iterable[Iterable[int]], size: str, kind: str = "Unified"
) -> Files:
    """One cache of every CPU in these domains."""
    files: Files = {}
    for domain in map(tuple, domains):
        for cpu in domain:
            folder = f"{CPU}/cpu{cpu}/cache/index{index}"
            files[f"{folder}/level"] = f"{level}\n"
            files[f"{folder}/type"] = f"{kind}\n"
            files[f"{folder}/size"] = f"{size}\n"
            files[f"{folder}/shared_cpu_map"] = mask(domain)
    return files


def online(cpus: Iterable[int], present: Iterable[int] | None = None) -> Files:
    """The kernel's own lists."""
    cpus = tuple(cpus)
    return {
        f"{CPU}/online": format_list(cpus) + "\n",
        f"{CPU}/present": format_list(cpus if present is None else present) + "\n",
    }


def node(number: int, cpus: Iterable[int], gib: float | None = 1, distance: str = "") -> Files:
    """A memory node."""
    files: Files = {f"{NODE}/node{number}/cpumap": mask(cpus)}
    if gib is not None:
        total = int(gib * (1 << 20))
        files[f"{NODE}/node{number}/meminfo"] = f"Node {number} MemTotal:  {total} kB\n"
    if distance:
        files[f"{NODE}/node{number}/distance"] = distance + "\n"
    return files


def cores(count: int, threads: int = 2) -> list[tuple[int, ...]]:
    """Cores numbered as x86 numbers them: all the first threads, then all the second ones."""
    return [tuple(core + count * thread for thread in range(threads)) for core in range(count)]


def machine(count: int = 192, threads: int = 2, gib: int = 768) -> Files:
    """A plain machine of so many cores."""
    return {
        **online(range(count * threads)),
        **threads_of(cores(count, threads)),
        **sockets_of([range(count * threads)]),
        "/proc/meminfo": f"MemTotal: {gib << 20} kB\nMemAvailable: {gib << 19} kB\n",
    }


def mountinfo(*mounts: tuple[str, str, str, str]) -> Files:
    """Mounts as (root within the file system, mount point, kind, options)."""
    lines = (
        f"{30 + index} 25 0:{index} {root} {point} rw shared:9 - {kind} {kind} rw,{options}\n"
        for index, (root, point, kind, options) in enumerate(mounts)
    )
    return {"/proc/self/mountinfo": "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n" + "".join(lines)}


def groups(**controllers: str) -> Files:
    """Where a process is: `unified` names version 2, any other name a controller of version 1."""

    def lines() -> Iterator[str]:
        for number, (name, path) in enumerate(controllers.items(), 1):
            if name == "unified":
                yield f"0::{path}\n"
            else:
                yield f"{number}:{name.replace('_', ',')}:{path}\n"

    return {"/proc/self/cgroup": "".join(lines())}


def unified(path: str, files: Mapping[str, str], root: str = "/") -> Files:
    """Version 2 at its usual place, with files named relative to the mount."""
    point = "/sys/fs/cgroup"
    return {
        **mountinfo((root, point, "cgroup2", "nsdelegate")),
        **groups(unified=path),
        f"{point}/cgroup.controllers": "cpuset cpu memory\n",
        **{f"{point}/{name}": content + "\n" for name, content in files.items()},
    }
