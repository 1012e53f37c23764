"""Removal of data from captures that identifies a person, a host or an individual device.

Only what a reader of this package uses is kept. Control groups are often named after users and
jobs, so their names are replaced consistently by numbers.
"""

from __future__ import annotations

from cputrain.machine.cgroups import unescape
from cputrain.machine.cpuinfo import parse_blocks
from cputrain.machine.frequency import CLOCK_KEYS, clock_of
from cputrain.machine.smbios import redact_table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CPUINFO_KEYS = frozenset(
    (
        *("processor", "vendor_id", "vendor", "mvendorid", "cpu family", "model", "model name"),
        *("processor model", "cpu", "uarch", "isa", "flags", "features", "platform", "cpu mhz"),
        *("cpu implementer", "cpu part", "cpu model", "hart isa", *CLOCK_KEYS),
    )
)
ENVIRONMENT_VARIABLES = frozenset(
    (
        *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_LOCALID", "SLURM_CPU_BIND_TYPE"),
        *("SLURM_STEP_TASKS_PER_NODE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    )
)
LIBRARY_PARTS = ("opencl", "pocl", "nvidia", "amdocl", "igdrcl", "intelocl", "rusticl", "clover")
DEVICE_PREFIXES = ("nvidia", "kfd", "dri", "dxg", "renderd", "card", "accel")
GROUP_FILE_PREFIXES = ("cgroup.", "cpu.", "cpuset.", "memory.")
LEGACY_GROUP_FILES = ("cpus", "mems")
SYSTEM_FOLDERS = ("sys", "proc", "dev", "etc", "usr", "opt", "lib", "lib64")
"""Folders of the root that are kept; all other folders may belong to users."""

HOMES = ("/home/", "/root/", "/Users/")
GROUP_PATH_FILES = ("/proc/self/cgroup", "/proc/self/cpuset")


class Redaction:
    """Redaction rules, with the names and mounts of the control groups in a capture's files."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._group_names: dict[str, str] = {}
        self._group_mounts: set[str] = set()
        for name in GROUP_PATH_FILES:
            for line in files.get(name, b"").decode("utf-8", "replace").splitlines():
                self._number_groups(_split_group_line(line)[1])
        for name in ("/proc/self/mountinfo", "/proc/mounts"):
            for line in files.get(name, b"").decode("utf-8", "replace").splitlines():
                fields = line.split()
                if _is_group_mount(line) and len(fields) > 4:
                    is_mountinfo = name.endswith("mountinfo")
                    self._group_mounts.add(unescape(fields[4 if is_mountinfo else 1]))
                    self._number_groups(unescape(fields[3]) if is_mountinfo else "")

    def _number_groups(self, path: str) -> None:
        for part in path.split("/"):
            if part and part not in ("..", "."):
                self._group_names.setdefault(part, f"group{len(self._group_names) + 1}")

    def is_kept(self, path: str) -> bool:
        """Return whether a path is of the machine or this process, and not of other users."""
        mount = self._group_mount_of(path)
        if mount is not None:
            *folders, last = path[len(mount) :].split("/")[1:] or [""]
            return all(part in self._group_names for part in folders) and (
                not last or last in self._group_names or _is_group_file(last)
            )
        first, second = (*path.split("/")[1:], "")[:2]
        if first == "dev" and second:
            return second.lower().startswith(DEVICE_PREFIXES)
        return first in ("", *SYSTEM_FOLDERS)

    def _group_mount_of(self, path: str) -> str | None:
        """Return the innermost control group mount that contains a path; None if there is none."""
        enclosing = (mount for mount in self._group_mounts if f"{path}/".startswith(f"{mount}/"))
        return max(enclosing, key=len, default=None)

    def path(self, path: str) -> str:
        """Return a path with control group names replaced, if it is under one of their mounts."""
        mount = self._group_mount_of(path)
        return path if mount is None else mount + self._rename_groups(path[len(mount) :])

    def _rename_groups(self, path: str) -> str:
        return "/".join(self._group_names.get(part, part) for part in path.split("/"))

    def file(self, path: str, raw: bytes) -> bytes | None:
        """Return the redacted content of a file; None to omit the file."""
        if not self.is_kept(path):
            return None
        if path == "/sys/firmware/dmi/tables/DMI":
            return redact_table(raw)
        lines = raw.decode("utf-8", "replace").splitlines()
        if path == "/proc/cpuinfo":
            return _join_lines(_shorten_cpuinfo(lines))
        if path in GROUP_PATH_FILES:
            parts = (_split_group_line(line) for line in lines)
            return _join_lines([before + self._rename_groups(group) for before, group in parts])
        if path == "/proc/cmdline":
            words = " ".join(lines).split()
            return _join_lines([" ".join(word for word in words if word.startswith("numa="))])
        if path.startswith("/etc/"):
            return _join_lines([line for line in lines if not any(home in line for home in HOMES)])
        if path in ("/proc/self/mountinfo", "/proc/mounts"):
            return _join_lines(
                [self._redact_mount(line) for line in lines if _is_group_mount(line)]
            )
        kept_prefixes = {
            "/proc/meminfo": ("MemTotal", "MemAvailable"),
            "/proc/self/status": ("Cpus_allowed",),
        }.get(path)
        if path.endswith("/meminfo") and kept_prefixes is None:
            return _join_lines([line for line in lines if " MemTotal" in line])
        if path.startswith("/proc/driver/nvidia/gpus/"):
            kept_prefixes = ("Model", "Node")
        if path.startswith("/sys/class/kfd/"):
            return _join_lines([line for line in lines if not line.startswith("unique_id")])
        if kept_prefixes is not None:
            return _join_lines([line for line in lines if line.startswith(kept_prefixes)])
        return raw[:4] if raw.startswith(b"\x7fELF") else raw

    def _redact_mount(self, line: str) -> str:
        """Return a mount line with renamed groups, without options that may contain scripts."""
        if " - " in line:
            left, _, right = line.partition(" - ")
            fields = left.split()
            fields[3] = self._rename_groups(unescape(fields[3]))
            return " ".join(fields) + " - " + self._redact_options(right)
        return self._redact_options(line)

    @staticmethod
    def _redact_options(line: str) -> str:
        return " ".join(
            ",".join(part for part in word.split(",") if not part.startswith("release_agent="))
            for word in line.split()
        )

    def names(self, path: str, entries: tuple[str, ...]) -> list[str]:
        """Return the entries of a folder that are kept."""
        if not self.is_kept(path):
            return []
        if self._group_mount_of(path) is not None:
            renamed = (self._group_names.get(name) for name in entries)
            group_files = [name for name in entries if _is_group_file(name)]
            return sorted([*(name for name in renamed if name), *group_files])
        if path.startswith("/dev"):
            return [name for name in entries if name.lower().startswith(DEVICE_PREFIXES)]
        if "/lib" in path or path in ("/", "/usr") or path.startswith("/etc/ld"):
            return [
                name
                for name in entries
                if any(word in name.lower() for word in LIBRARY_PARTS) or name == "libcuda.so.1"
            ]
        return list(entries)

    def link(self, path: str, target: str) -> str | None:
        """Return the target of a link; None to omit the link."""
        is_private = any(home in target for home in HOMES)
        return target if self.is_kept(path) and not is_private else None

    @staticmethod
    def environment(environment: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables that grant CPUs or identify a rank."""
        return {
            name: environment[name] for name in sorted(ENVIRONMENT_VARIABLES) if name in environment
        }


def _is_group_file(name: str) -> bool:
    return name.startswith(GROUP_FILE_PREFIXES) or name in LEGACY_GROUP_FILES


def _is_group_mount(line: str) -> bool:
    fields = line.split()
    filesystem = line.partition(" - ")[2].split()[:1] if " - " in line else fields[2:3]
    return filesystem in (["cgroup"], ["cgroup2"], ["cpuset"])


def _join_lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _split_group_line(line: str) -> tuple[str, str]:
    """Split a line of /proc/self/cgroup into "4:cpu:" and the path, which may contain colons."""
    if line.startswith("/"):  # a line of /proc/self/cpuset is only a path
        return "", line
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    return f"{number}:{controllers}:", path


def _shorten_cpuinfo(lines: list[str]) -> list[str]:
    """Keep the keys of /proc/cpuinfo that are read, without values repeated from earlier blocks."""
    kept_lines: list[str] = []
    last_values: dict[str, str] = {}
    clocks = [clock for block in parse_blocks("\n".join(lines)) if (clock := clock_of(block))]
    for line in lines:
        key, colon, value = line.partition(":")
        name = key.strip().lower()
        if not line.strip():
            kept_lines.append("")
        elif colon and name in CLOCK_KEYS:
            if clocks:  # the mean suffices; the clocks of all CPUs would bloat the capture
                kept_lines.append(f"{key.strip()}\t: {sum(clocks) // len(clocks) / 1e6:.6f}")
                clocks = []
        elif colon and name in CPUINFO_KEYS:
            # Keys that distinguish kinds of cores are kept in every block.
            if last_values.get(name) != value or name in (
                "processor",
                "cpu implementer",
                "cpu part",
            ):
                kept_lines.append(f"{key.strip()}\t: {value.strip()}")
            last_values[name] = value
        elif name.startswith("processor ") and "machine = " in value:  # s390, with a serial number
            kept_lines.append(
                f"{key.strip()}: machine = {value.partition('machine = ')[2].strip()}"
            )
    return kept_lines
