"""What is left out of a capture: everything that names a person, a host or a single device.

The rule is to keep what a question of ours reads, and nothing beside it. Control groups are often
named after users and jobs, so their paths are replaced, consistently, by numbers.
"""

from __future__ import annotations

from cputrain.machine.smbios import redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

CPUINFO_KEYS = frozenset(
    (
        *("processor", "vendor_id", "vendor", "mvendorid", "cpu family", "model", "model name"),
        *("processor model", "cpu", "uarch", "isa", "flags", "features", "platform", "cpu mhz"),
        *("cpu implementer", "cpu part"),
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
GROUP_FILES = ("cgroup.", "cpu.", "cpus", "cpuset.", "mems", "memory.")


class Redaction:
    """The rules, with the paths of control groups that this machine has."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self._groups: dict[str, str] = {}
        for name in ("/proc/self/cgroup", "/proc/self/cpuset"):
            for line in files.get(name, b"").decode("utf-8", "replace").splitlines():
                for part in line.rpartition(":")[2].split("/"):
                    if part and part not in ("..", "."):
                        self._groups.setdefault(part, f"group{len(self._groups) + 1}")
        self._points = {
            point for line in self._mounts(files) if (point := line[0]).count("/") >= 1
        }

    @staticmethod
    def _mounts(files: Mapping[str, bytes]) -> list[tuple[str]]:
        points = []
        for line in files.get("/proc/self/mountinfo", b"").decode("utf-8", "replace").splitlines():
            words = line.split()
            if _is_group_mount(line) and len(words) > 4:
                points.append((words[4],))
        for line in files.get("/proc/mounts", b"").decode("utf-8", "replace").splitlines():
            words = line.split()
            if _is_group_mount(line) and len(words) > 1:
                points.append((words[1],))
        return points

    def path(self, path: str) -> str:
        """A path with the names of control groups replaced where it lies under their mounts."""
        for point in sorted(self._points, key=len, reverse=True):
            if path.startswith(f"{point}/"):
                return point + self._renamed(path[len(point) :])
        return path

    def _renamed(self, path: str) -> str:
        return "/".join(self._groups.get(part, part) for part in path.split("/"))

    def file(self, path: str, raw: bytes) -> bytes | None:
        """What is kept of a file; None to leave it out."""
        if path == "/sys/firmware/dmi/tables/DMI":
            return redact(raw)
        lines = raw.decode("utf-8", "replace").splitlines()
        if path == "/proc/cpuinfo":
            return _joined(_short_cpuinfo(lines))
        if path.startswith("/proc/self/") and path.endswith(("/cgroup", "/cpuset")):
            return _joined(
                [line.rpartition(":")[0] + line.rpartition(":")[1]
                 + self._renamed(line.rpartition(":")[2]) for line in lines]
            )
        if path in ("/proc/self/mountinfo", "/proc/mounts"):
            return _joined([self._mount(line) for line in lines if _is_group_mount(line)])
        keep = {
            "/proc/meminfo": ("MemTotal", "MemAvailable"),
            "/proc/self/status": ("Cpus_allowed_list",),
        }.get(path)
        if path.endswith("/meminfo") and keep is None:
            return _joined([line for line in lines if " MemTotal" in line])
        if path.startswith("/proc/driver/nvidia/gpus/"):
            keep = ("Model",)
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
            words[3] = self._renamed(words[3])
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
        if path.startswith("/dev"):
            return [name for name in found if name.lower().startswith(DEVICE_WORDS)]
        if "/lib" in path or path in ("/", "/usr") or path.startswith("/etc/ld"):
            return [
                name
                for name in found
                if any(word in name.lower() for word in LIBRARY_WORDS) or name == "libcuda.so.1"
            ]
        for point in self._points:
            if path == point or path.startswith(f"{point}/"):
                kept = (self._groups.get(name, name) for name in found)
                known = set(self._groups.values())
                return [n for n in kept if n in known or n.startswith(GROUP_FILES)]
        return list(found)

    @staticmethod
    def environment(environment: Mapping[str, str]) -> dict[str, str]:
        """The variables that grant CPUs or name a rank."""
        return {name: environment[name] for name in sorted(ENVIRONMENT) if name in environment}


def _is_group_mount(line: str) -> bool:
    words = line.split()
    kind = line.partition(" - ")[2].split()[:1] if " - " in line else words[2:3]
    return kind in (["cgroup"], ["cgroup2"], ["cpuset"])


def _joined(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


def _short_cpuinfo(lines: list[str]) -> list[str]:
    """The keys that are read; a value that repeats the last one's is left out of later blocks."""
    kept: list[str] = []
    last: dict[str, str] = {}
    for line in lines:
        key, colon, value = line.partition(":")
        name = key.strip().lower()
        if not line.strip():
            kept.append("")
        elif colon and name in CPUINFO_KEYS and (name != "cpu mhz" or name not in last):
            # what tells kinds of core apart stays in every block
            if last.get(name) != value or name in ("processor", "cpu implementer", "cpu part"):
                kept.append(f"{key.strip()}\t: {value.strip()}")
            last[name] = value
    return kept
