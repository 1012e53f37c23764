"""CPUs, CPU time and memory granted by control groups (versions 1 and 2).

A group is bound by the tightest limit of its ancestors, so every level up to the mount is read. In
a container the path in /proc/self/cgroup may be the host's while the mount shows only a subtree;
the mount's root, from mountinfo, identifies the subtree.
"""

from __future__ import annotations

from cputrain.machine.cpulist import parse_list
from cputrain.machine.source import number, text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cputrain.machine.source import Source

    BoundAndFile = tuple[float, str]

UNLIMITED_BYTES = 1 << 60
"""Limits from this size on mean "no limit", which version 1 writes as the largest aligned size."""


class Grant(Record):
    """CPUs, CPU time and memory that the control groups of this process allow."""

    cpus: tuple[int, ...] | None
    """CPUs of the cpuset; None if no group restricts them."""

    cpus_from: str
    """File from which `cpus` was read; empty if None."""

    quota_cpus: float | None
    """CPU seconds per second: the smallest quota up the tree; None without a quota."""

    quota_from: str
    """File from which `quota_cpus` was read; empty if None."""

    memory_bytes: int | None
    """Smallest memory limit up the tree; None without a limit."""

    memory_from: str
    """File from which `memory_bytes` was read; empty if None."""


class _Mount(Record):
    point: str
    """Mount point without trailing slash."""

    root: str
    """Folder within the file system that is mounted."""

    controllers: frozenset[str]
    """Controllers of a version 1 mount; empty for version 2."""

    unified: bool
    """Whether the mount is version 2."""

    legacy: bool
    """Whether it is the cpuset file system older than control groups; its files have no prefix."""


def read_grant(source: Source) -> Grant:
    """Return the cpuset and the tightest CPU quota and memory limit of this process."""
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
    """Paths of the memory files of a control group that this process belongs to."""

    usage: str
    """File with the memory in use by the group's processes, page cache included."""

    limits: tuple[str, ...]
    """Files with the limits; a file may be absent or contain "no limit"."""

    stat: str
    """File with the memory in use by purpose."""

    pressure: str
    """File with the stall times of the group's processes (PSI)."""


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
            for folder in _group_folders(source, mount, path)
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
    """Yield mount point, root within the file system, type and options of every mount."""
    mountinfo = text(source, "/proc/self/mountinfo")
    if mountinfo:
        for line in mountinfo.splitlines():
            left, separator, right = line.partition(" - ")
            mount_fields, filesystem_fields = left.split(), right.split()
            if separator and len(mount_fields) >= 5 and len(filesystem_fields) >= 3:
                yield (
                    unescape(mount_fields[4]),
                    unescape(mount_fields[3]),
                    filesystem_fields[0],
                    filesystem_fields[2],
                )
        return
    for line in (text(source, "/proc/mounts") or "").splitlines():
        fields = line.split()
        if len(fields) >= 4:
            yield unescape(fields[1]), "/", fields[2], fields[3]


def unescape(path: str) -> str:
    r"""Decode octal escapes in a path of a mount list, such as "\040" for a space."""
    first, *rest = path.split("\\")
    return first + "".join(
        chr(int(part[:3], 8)) + part[3:] if part[:3].isdecimal() else f"\\{part}" for part in rest
    )


def _read_paths(source: Source) -> dict[str, str]:
    """Return the group path of each version 1 controller; the version 2 path has the key ""."""
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


def _group_folders(source: Source, mount: _Mount, path: str | None) -> list[str]:
    """Return the folders of the process's group and its ancestors in a mount, innermost first."""
    if path is None or not path.startswith("/"):
        return []
    if mount.root != "/" and (path == mount.root or path.startswith(mount.root + "/")):
        path = path[len(mount.root) :]
    parts = [part for part in path.split("/") if part and part != ".."]
    chain = ["/".join((mount.point, *parts[:depth])) for depth in range(len(parts), -1, -1)]
    # A path that is not under this mount belongs to a part of the tree hidden from the container.
    while len(chain) > 1 and not source.names(chain[0]):
        chain.pop(0)
    return chain


def _with_controller(mounts: Iterable[_Mount], controller: str) -> Iterator[_Mount]:
    return (mount for mount in mounts if controller in mount.controllers)


def _cpusets(
    source: Source, mounts: list[_Mount], paths: dict[str, str]
) -> Iterator[tuple[tuple[int, ...], str]]:
    names_v1 = ("cpuset.effective_cpus", "cpuset.cpus", "cpus")
    candidates: list[tuple[_Mount, tuple[str, ...]]] = [
        *((mount, names_v1) for mount in _with_controller(mounts, "cpuset")),
        *((mount, ("cpus",)) for mount in mounts if mount.legacy),
        *((mount, ("cpuset.cpus.effective",)) for mount in mounts if mount.unified),
    ]
    for mount, names in candidates:
        path = paths.get("cpuset")
        if mount.unified:
            path = paths.get("", path)
        for folder in _group_folders(source, mount, path):
            for name in names:
                cpu_list = text(source, f"{folder}/{name}")
                if not cpu_list:  # an empty cpuset inherits its parent's CPUs
                    continue
                try:
                    yield parse_list(cpu_list), f"{folder}/{name}"
                except ValueError:
                    continue


def _quotas(source: Source, mounts: list[_Mount], paths: dict[str, str]) -> Iterator[BoundAndFile]:
    for mount in _with_controller(mounts, "cpu"):
        for folder in _group_folders(source, mount, paths.get("cpu")):
            quota = number(source, f"{folder}/cpu.cfs_quota_us")
            period = number(source, f"{folder}/cpu.cfs_period_us")
            if quota is not None and quota > 0 and period:
                yield quota / period, f"{folder}/cpu.cfs_quota_us"
    for mount in mounts:
        for folder in _group_folders(source, mount, paths.get("")) if mount.unified else ():
            words = (text(source, f"{folder}/cpu.max") or "").split()
            if words and words[0].isdecimal():
                period = int(words[1]) if len(words) > 1 and words[1].isdecimal() else 100_000
                if period:
                    yield int(words[0]) / period, f"{folder}/cpu.max"


def _memory_limits(
    source: Source, mounts: list[_Mount], paths: dict[str, str]
) -> Iterator[BoundAndFile]:
    for mount in _with_controller(mounts, "memory"):
        for folder in _group_folders(source, mount, paths.get("memory")):
            limit = number(source, f"{folder}/memory.limit_in_bytes")
            if limit is not None and 0 < limit < UNLIMITED_BYTES:
                yield limit, f"{folder}/memory.limit_in_bytes"
    for mount in mounts:
        for folder in _group_folders(source, mount, paths.get("")) if mount.unified else ():
            for name in ("memory.max", "memory.high"):
                limit = number(source, f"{folder}/{name}")
                if limit is not None and limit > 0:
                    yield limit, f"{folder}/{name}"
