"""What is left out of a capture: everything that names a person, a host or a single device.

The rule is to keep what a question of ours reads, and nothing beside it. Control groups are often
named after users and jobs, so their paths are replaced, consistently, by numbers.
"""

from __future__ import annotations

from cputrain.machine.cgroups import unescape
from cputrain.machine.cpuinfo import parse_blocks
from cputrain.machine.frequency import CLOCK_KEYS, clock_of
from cputrain.machine.smbios import redact

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
ENVIRONMENT = frozenset(
    (
        *("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE", "SLURM_LOCALID", "SLURM_CPU_BIND_TYPE"),
        *("SLURM_STEP_TASKS_PER_NODE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        *("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        *("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        *("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    )
)
LIBRARY_WORDS = ("opencl", "pocl", "nvidia", "amdocl", "igdrcl", "intelocl", "rusticl", "clover")
DEVICE_WORDS = ("nvidia", "kfd", "dri", "dxg", "renderd", "card", "accel")
GROUP_FILES = ("cgroup.", "cpu.", "cpuset.", "memory.")
OLD_GROUP_FILES = ("cpus", "mems")
SYSTEM_FOLDERS = ("sys", "proc", "dev", "etc", "usr", "opt", "lib", "lib64")
"""Of the root; what lies elsewhere is in somebody's home, and a capture does without."""

HOMES = ("/home/", "/root/", "/Users/")
GROUP_LISTS = ("/proc/self/cgroup", "/proc/self/cpuset")


class Redaction:
    """The rules, with the paths of control groups that this machine has."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._groups: dict[str, str] = {}
        self._points: set[str] = set()
        for name in GROUP_LISTS:
            for line in files.get(name, b"").decode("utf-8", "replace").splitlines():
                self._name_groups(_before_path(line)[1])
        for name in ("/proc/self/mountinfo", "/proc/mounts"):
            for line in files.get(name, b"").decode("utf-8", "replace").splitlines():
                words = line.split()
                if _is_group_mount(line) and len(words) > 4:
                    detailed = name.endswith("mountinfo")
                    self._points.add(unescape(words[4 if detailed else 1]))
                    self._name_groups(unescape(words[3]) if detailed else "")

    def _name_groups(self, path: str) -> None:
        for part in path.split("/"):
            if part and part not in ("..", "."):
                self._groups.setdefault(part, f"group{len(self._groups) + 1}")

    def keeps(self, path: str) -> bool:
        """Whether a file, folder or link is the machine's, or this process's, and no one else's."""
        point = self._point(path)
        if point is not None:
            *folders, last = path[len(point) :].split("/")[1:] or [""]
            return all(part in self._groups for part in folders) and (
                not last or last in self._groups or _is_group_file(last)
            )
        first, second = (*path.split("/")[1:], "")[:2]
        if first == "dev" and second:
            return second.lower().startswith(DEVICE_WORDS)
        return first in ("", *SYSTEM_FOLDERS)

    def _point(self, path: str) -> str | None:
        """The innermost mount of control groups that a path is in."""
        around = (point for point in self._points if f"{path}/".startswith(f"{point}/"))
        return max(around, key=len, default=None)

    def path(self, path: str) -> str:
        """A path with the names of control groups replaced where it lies under their mounts."""
        point = self._point(path)
        return path if point is None else point + self._renamed(path[len(point) :])

    def _renamed(self, path: str) -> str:
        return "/".join(self._groups.get(part, part) for part in path.split("/"))

    def file(self, path: str, raw: bytes) -> bytes | None:
        """What is kept of a file; None to leave it out."""
        if not self.keeps(path):
            return None
        if path == "/sys/firmware/dmi/tables/DMI":
            return redact(raw)
        lines = raw.decode("utf-8", "replace").splitlines()
        if path == "/proc/cpuinfo":
            return _joined(_short_cpuinfo(lines))
        if path in GROUP_LISTS:
            parts = (_before_path(line) for line in lines)
            return _joined([before + self._renamed(group) for before, group in parts])
        if path == "/proc/cmdline":
            words = " ".join(lines).split()
            return _joined([" ".join(word for word in words if word.startswith("numa="))])
        if path.startswith("/etc/"):
            return _joined([line for line in lines if not any(home in line for home in HOMES)])
        if path in ("/proc/self/mountinfo", "/proc/mounts"):
            return _joined([self._mount(line) for line in lines if _is_group_mount(line)])
        keep = {
            "/proc/meminfo": ("MemTotal", "MemAvailable"),
            "/proc/self/status": ("Cpus_allowed",),
        }.get(path)
        if path.endswith("/meminfo") and keep is None:
            return _joined([line for line in lines if " MemTotal" in line])
        if path.startswith("/proc/driver/nvidia/gpus/"):
            keep = ("Model", "Node")
        if path.startswith("/sys/class/kfd/"):
            return _joined([line for line in lines if not line.startswith("unique_id")])
        if keep is not None:
            return _joined([line for line in lines if line.startswith(keep)])
        return raw[:4] if raw.startswith(b"\x7fELF") else raw

    def _mount(self, line: str) -> str:
        """A mount with its root's groups renamed, and options that may name scripts left out."""
        if " - " in line:
            left, _, right = line.partition(" - ")
            words = left.split()
            words[3] = self._renamed(unescape(words[3]))
            return " ".join(words) + " - " + self._options(right)
        return self._options(line)

    @staticmethod
    def _options(line: str) -> str:
        return " ".join(
            ",".join(part for part in word.split(",") if not part.startswith("release_agent="))
            for word in line.split()
        )

    def names(self, path: str, found: tuple[str, ...]) -> list[str]:
        """What is kept of a folder's names."""
        if not self.keeps(path):
            return []
        if self._point(path) is not None:
            known = (self._groups.get(name) for name in found)
            own = [name for name in found if _is_group_file(name)]
            return sorted([*(name for name in known if name), *own])
        if path.startswith("/dev"):
            return [name for name in found if name.lower().startswith(DEVICE_WORDS)]
        if "/lib" in path or path in ("/", "/usr") or path.startswith("/etc/ld"):
            return [
                name
                for name in found
                if any(word in name.lower() for word in LIBRARY_WORDS) or name == "libcuda.so.1"
            ]
        return list(found)

    def link(self, path: str, found: str) -> str | None:
        """What is kept of a link; None to leave it out."""
        private = any(home in found for home in HOMES)
        return found if self.keeps(path) and not private else None

    @staticmethod
    def environment(environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that grant CPUs or name a rank."""
        return {name: environment[name] for name in sorted(ENVIRONMENT) if name in environment}


def _is_group_file(name: str) -> bool:
    return name.startswith(GROUP_FILES) or name in OLD_GROUP_FILES


def _is_group_mount(line: str) -> bool:
    words = line.split()
    kind = line.partition(" - ")[2].split()[:1] if " - " in line else words[2:3]
    return kind in (["cgroup"], ["cgroup2"], ["cpuset"])


def _joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _before_path(line: str) -> tuple[str, str]:
    """A line of /proc/self/cgroup as "4:cpu:" and the path, in which colons are common too."""
    if line.startswith("/"):  # a line of /proc/self/cpuset is the path alone
        return "", line
    number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    return f"{number}:{controllers}:", path


def _short_cpuinfo(lines: list[str]) -> list[str]:
    """The keys that are read; a value that repeats the last one's is left out of later blocks."""
    kept: list[str] = []
    last: dict[str, str] = {}
    clocks = [clock for block in parse_blocks("\n".join(lines)) if (clock := clock_of(block))]
    for line in lines:
        key, colon, value = line.partition(":")
        name = key.strip().lower()
        if not line.strip():
            kept.append("")
        elif colon and name in CLOCK_KEYS:
            if clocks:  # one for all, since each CPU's would fill pages
                kept.append(f"{key.strip()}\t: {sum(clocks) // len(clocks) / 1e6:.6f}")
                clocks = []
        elif colon and name in CPUINFO_KEYS:
            # what tells kinds of core apart stays in every block
            if last.get(name) != value or name in ("processor", "cpu implementer", "cpu part"):
                kept.append(f"{key.strip()}\t: {value.strip()}")
            last[name] = value
        elif name.startswith("processor ") and "machine = " in value:  # s390, with a serial number
            kept.append(f"{key.strip()}: machine = {value.partition('machine = ')[2].strip()}")
    return kept
