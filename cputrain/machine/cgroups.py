"""What control groups grant: CPUs, CPU time and memory, versions 1 and 2, however they are nested.

A group is only as free as the tightest of its ancestors, so every level up to the mount is read.
In a container the path in /proc/self/cgroup may be the host's while the mount shows only a part of
the tree; the mount's root, from mountinfo, says which part.
"""

from __future__ import annotations

from cputrain.machine.cpulist import parse_list
from cputrain.machine.source import number, text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cputrain.machine.source import Source

    Found = tuple[float, str]

UNLIMITED = 1 << 60
"""Version 1 writes "no limit" as the largest page-aligned number."""


class Grant(Record):
    """What the control groups of this process leave it."""

    cpus: tuple[int, ...] | None
    """The cpuset; None where no group restricts it."""

    cpus_from: str
    """The file that said so, or why nothing is known."""

    quota_cpus: float | None
    """CPU seconds per second, the tightest up the tree; None without a quota."""

    quota_from: str
    """The file that said so."""

    memory_bytes: int | None
    """The tightest memory limit up the tree; None without one."""

    memory_from: str
    """The file that said so."""


class _Mount(Record):
    point: str
    root: str
    controllers: frozenset[str]
    """Version 1 only; empty for version 2."""
    unified: bool
    legacy: bool
    """The cpuset file system of before control groups, whose files have no prefix."""


def read_grant(source: Source) -> Grant:
    """The tightest of everything the control groups say."""
    mounts = _read_mounts(source)
    paths = _read_paths(source)
    cpuset = next(_cpusets(source, mounts, paths), (None, ""))
    quota = min(_quotas(source, mounts, paths), default=(None, ""))
    memory = min(_memory_limits(source, mounts, paths), default=(None, ""))
    return Grant(
        cpus=cpuset[0],
        cpus_from=cpuset[1],
        quota_cpus=quota[0],
        quota_from=quota[1],
        memory_bytes=None if memory[0] is None else int(memory[0]),
        memory_from=memory[1],
    )


class MemoryGroup(Record):
    """A control group that counts this process's memory, as the paths of its files."""

    usage: str
    """What its processes hold, files in the page cache included."""

    limits: tuple[str, ...]
    """What they may hold; a file may be missing, or say that there is no limit."""

    stat: str
    """What the memory is used for."""

    pressure: str
    """How long its processes waited for memory."""


def memory_groups(source: Source) -> tuple[MemoryGroup, ...]:
    """Return the memory groups of this process, the innermost first, with all their ancestors."""
    paths = _read_paths(source)
    groups = []
    for mount in _read_mounts(source):
        if mount.unified:
            names, path = ("memory.current", ("memory.max", "memory.high")), paths.get("")
        elif "memory" in mount.controllers:
            names, path = (
                ("memory.usage_in_bytes", ("memory.limit_in_bytes", "memory.soft_limit_in_bytes")),
                paths.get("memory"),
            )
        else:
            continue
        usage, limits = names
        groups += [
            MemoryGroup(
                usage=f"{folder}/{usage}",
                limits=tuple(f"{folder}/{name}" for name in limits),
                stat=f"{folder}/memory.stat",
                pressure=f"{folder}/memory.pressure",
            )
            for folder in _folders(source, mount, path)
        ]
    return tuple(groups)


def _read_mounts(source: Source) -> list[_Mount]:
    mounts = []
    for point, root, kind, options in _mount_lines(source):
        if kind in ("cgroup", "cgroup2", "cpuset"):
            mounts.append(
                _Mount(
                    point=point.rstrip("/"),
                    root=root,
                    controllers=frozenset(options.split(",")) if kind == "cgroup" else frozenset(),
                    unified=kind == "cgroup2",
                    legacy=kind == "cpuset",
                )
            )
    return mounts


def _mount_lines(source: Source) -> Iterator[tuple[str, str, str, str]]:
    """Mount point, root within the file system, kind and options of every mount."""
    detailed = text(source, "/proc/self/mountinfo")
    if detailed:
        for line in detailed.splitlines():
            left, dash, right = line.partition(" - ")
            here, there = left.split(), right.split()
            if dash and len(here) >= 5 and len(there) >= 3:
                yield unescaped(here[4]), unescaped(here[3]), there[0], there[2]
        return
    for line in (text(source, "/proc/mounts") or "").splitlines():
        words = line.split()
        if len(words) >= 4:
            yield unescaped(words[1]), "/", words[2], words[3]


def unescaped(path: str) -> str:
    """A path of a mount list, where a space is written as its octal code, "\\040"."""
    first, *rest = path.split("\\")
    return first + "".join(
        chr(int(part[:3], 8)) + part[3:] if part[:3].isdecimal() else f"\\{part}" for part in rest
    )


def _read_paths(source: Source) -> dict[str, str]:
    """The group of each version-1 controller; under "" that of version 2."""
    paths: dict[str, str] = {}
    for line in (text(source, "/proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            paths.setdefault(controller, path)
    cpuset = text(source, "/proc/self/cpuset")
    if cpuset:
        paths.setdefault("cpuset", cpuset)
    return paths


def _folders(source: Source, mount: _Mount, path: str | None) -> list[str]:
    """The process's group under this mount and every ancestor, the innermost first."""
    if path is None or not path.startswith("/"):
        return []
    if mount.root != "/" and (path == mount.root or path.startswith(mount.root + "/")):
        path = path[len(mount.root) :]
    parts = [part for part in path.split("/") if part and part != ".."]
    chain = ["/".join((mount.point, *parts[:depth])) for depth in range(len(parts), -1, -1)]
    # a path that is not under this mount belongs to a tree that the container cannot see
    while len(chain) > 1 and not source.names(chain[0]):
        chain.pop(0)
    return chain


def _of(mounts: Iterable[_Mount], controller: str) -> Iterator[_Mount]:
    return (mount for mount in mounts if controller in mount.controllers)


def _cpusets(
    source: Source, mounts: list[_Mount], paths: dict[str, str]
) -> Iterator[tuple[tuple[int, ...], str]]:
    names_of_old = ("cpuset.effective_cpus", "cpuset.cpus", "cpus")
    trees: list[tuple[_Mount, tuple[str, ...]]] = [
        *((mount, names_of_old) for mount in _of(mounts, "cpuset")),
        *((mount, ("cpus",)) for mount in mounts if mount.legacy),
        *((mount, ("cpuset.cpus.effective",)) for mount in mounts if mount.unified),
    ]
    for mount, names in trees:
        path = paths.get("cpuset")
        if mount.unified:
            path = paths.get("", path)
        for folder in _folders(source, mount, path):
            for name in names:
                found = text(source, f"{folder}/{name}")
                if not found:  # an empty cpuset inherits its parent's
                    continue
                try:
                    yield parse_list(found), f"{folder}/{name}"
                except ValueError:
                    continue


def _quotas(source: Source, mounts: list[_Mount], paths: dict[str, str]) -> Iterator[Found]:
    for mount in _of(mounts, "cpu"):
        for folder in _folders(source, mount, paths.get("cpu")):
            quota = number(source, f"{folder}/cpu.cfs_quota_us")
            period = number(source, f"{folder}/cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                yield quota / period, f"{folder}/cpu.cfs_quota_us"
    for mount in mounts:
        for folder in _folders(source, mount, paths.get("")) if mount.unified else ():
            words = (text(source, f"{folder}/cpu.max") or "").split()
            if words and words[0].isdecimal():
                period = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 100_000
                if period:
                    yield int(words[0]) / period, f"{folder}/cpu.max"


def _memory_limits(source: Source, mounts: list[_Mount], paths: dict[str, str]) -> Iterator[Found]:
    for mount in _of(mounts, "memory"):
        for folder in _folders(source, mount, paths.get("memory")):
            limit = number(source, f"{folder}/memory.limit_in_bytes")
            if limit is not None and 0 < limit < UNLIMITED:
                yield limit, f"{folder}/memory.limit_in_bytes"
    for mount in mounts:
        for folder in _folders(source, mount, paths.get("")) if mount.unified else ():
            for name in ("memory.max", "memory.high"):
                limit = number(source, f"{folder}/{name}")
                if limit is not None and limit > 0:
                    yield limit, f"{folder}/{name}"
