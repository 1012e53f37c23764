"""Which logical CPUs there are, and what they share: cores, dies, sockets, caches.

Membership is read from the masks the kernel gives, not from ids: core ids repeat between clusters
on Arm, sockets and nodes are numbered with gaps, and CPU n need not be core n.
"""

from __future__ import annotations

from cputrain.machine.cpulist import parse_list, parse_mask
from cputrain.machine.source import number, text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cputrain.machine.source import Source

CPU_FOLDER = "/sys/devices/system/cpu"

Cpus = tuple[int, ...]


class Domain(Record):
    """Logical CPUs that share one cache."""

    cpus: Cpus
    """The sharers, online ones only."""

    size_bytes: int | None
    """Its size; None where the kernel does not say, as on many Arm machines."""


class Topology(Record):
    """Logical CPUs, and what they share."""

    online: Cpus
    """CPUs the kernel schedules on."""

    offline: Cpus
    """CPUs that are plugged in but switched off."""

    cores: tuple[Cpus, ...]
    """The hardware threads of each physical core."""

    dies: tuple[Cpus, ...]
    """The CPUs of each die; empty where the kernel does not tell dies apart."""

    sockets: tuple[Cpus, ...]
    """The CPUs of each package."""

    l1_domains: tuple[Domain, ...]
    """Level-1 data caches."""

    l2_domains: tuple[Domain, ...]
    """Level-2 caches."""

    l3_domains: tuple[Domain, ...]
    """Level-3 caches; empty where there are none or a hypervisor hides them."""


def read_cpus_of(source: Source, list_path: str, mask_path: str) -> Cpus | None:
    """CPUs from a list or, on older kernels, from the mask beside it; None without either."""
    for path, parse in ((list_path, parse_list), (mask_path, parse_mask)):
        found = text(source, path)
        if found is not None:
            try:
                return parse(found)
            except ValueError:
                continue  # a file that holds something else tells as much as one that is absent
    return None


def read_topology(source: Source, *, caches: bool = True) -> Topology:
    """The topology of the machine; with no CPU to be found at all, `online` is empty.

    Caches are most of the files and no policy of a single process asks for them, so a launch on
    hundreds of CPUs leaves them out.
    """
    online, offline = _read_online(source)
    cores = _read_cores(source, online)
    domains = _read_caches(source, cores, online) if caches else {}
    return Topology(
        online=online,
        offline=offline,
        cores=cores,
        dies=_read_dies(source, online),
        sockets=_read_sockets(source, online),
        l1_domains=domains.get(1, ()),
        l2_domains=domains.get(2, ()),
        l3_domains=domains.get(3, ()),
    )


def _read_online(source: Source) -> tuple[Cpus, Cpus]:
    listed = _read_list(source, "online")
    folders = sorted(
        int(name[3:])
        for name in source.names(CPU_FOLDER)
        if name.startswith("cpu") and name[3:].isdigit()
    )
    present = _read_list(source, "present") or tuple(folders)
    if listed is None:
        # before Linux 2.6.26 only each CPU's own file told, and the boot CPU has none
        listed = tuple(
            cpu for cpu in folders if number(source, f"{CPU_FOLDER}/cpu{cpu}/online") in (None, 1)
        )
    if not listed:
        listed = _listed_in_cpuinfo(source)
    return listed, tuple(cpu for cpu in present if cpu not in set(listed))


def _read_list(source: Source, name: str) -> Cpus | None:
    return read_cpus_of(source, f"{CPU_FOLDER}/{name}", "")


def _listed_in_cpuinfo(source: Source) -> Cpus:
    lines = (text(source, "/proc/cpuinfo") or "").splitlines()
    found = (line.partition(":")[2].strip() for line in lines if line.startswith("processor"))
    return tuple(sorted({int(value) for value in found if value.isdigit()}))


def _read_cores(source: Source, online: Cpus) -> tuple[Cpus, ...]:
    def siblings(folder: str) -> Cpus | None:
        return _read_either(source, folder, "core_cpus", "thread_siblings")

    cores = []
    for group in _groups(online, siblings):
        if len(group) == 1:
            cores.append(group)
            continue
        # AMD's Bulldozer shows the two cores of a module as siblings; their core ids differ
        by_id: dict[int | None, list[int]] = {}
        for cpu in group:
            core_id = number(source, f"{CPU_FOLDER}/cpu{cpu}/topology/core_id")
            by_id.setdefault(core_id, []).append(cpu)
        cores.extend(tuple(cpus) for cpus in by_id.values())
    return tuple(sorted(cores))


def _read_sockets(source: Source, online: Cpus) -> tuple[Cpus, ...]:
    def package(folder: str) -> Cpus | None:
        return _read_either(source, folder, "package_cpus", "core_siblings")

    if online and package(f"{CPU_FOLDER}/cpu{online[0]}/topology") is None:
        by_id: dict[int | None, list[int]] = {}
        for cpu in online:
            package_id = number(source, f"{CPU_FOLDER}/cpu{cpu}/topology/physical_package_id")
            by_id.setdefault(package_id, []).append(cpu)
        return tuple(sorted(tuple(cpus) for cpus in by_id.values()))
    return _groups(online, package)


def _read_dies(source: Source, online: Cpus) -> tuple[Cpus, ...]:
    def die(folder: str) -> Cpus | None:
        # an id of -1 means that the firmware tells nothing, though a mask is there
        die_id = number(source, f"{folder}/die_id")
        return _read_either(source, folder, "die_cpus") if (die_id or 0) >= 0 else None

    if not online or die(f"{CPU_FOLDER}/cpu{online[0]}/topology") is None:
        return ()
    return _groups(online, die)


def _read_either(source: Source, folder: str, *names: str) -> Cpus | None:
    """The mask under its newer name or its older one."""
    for name in names:
        found = read_cpus_of(source, f"{folder}/{name}_list", f"{folder}/{name}")
        if found:
            return found
    return None


def _groups(online: Cpus, read: Callable[[str], Cpus | None]) -> tuple[Cpus, ...]:
    """Partition the online CPUs by a mask that each of them names; a CPU without one is alone."""
    everything = set(online)
    left = set(online)
    groups = []
    for cpu in online:
        if cpu not in left:
            continue
        mask = read(f"{CPU_FOLDER}/cpu{cpu}/topology")
        group = {cpu}.union(mask or ()) & everything & left
        left -= group
        groups.append(tuple(sorted(group)))
    return tuple(sorted(groups))


def _read_caches(
    source: Source, cores: Iterable[Cpus], online: Cpus
) -> dict[int, tuple[Domain, ...]]:
    everything = set(online)
    found: dict[int, dict[Cpus, Domain]] = {}
    covered: dict[int, set[int]] = {}
    for core in cores:
        for cpu in core:
            if cpu != core[0] and all(cpu in cpus for cpus in covered.values()):
                continue  # its sibling told all: thousands of files fewer on a big machine
            folder = f"{CPU_FOLDER}/cpu{cpu}/cache"
            for index in source.names(folder):
                level = number(source, f"{folder}/{index}/level")
                if level is None or text(source, f"{folder}/{index}/type") == "Instruction":
                    continue
                if cpu in covered.setdefault(level, set()):
                    continue
                shared = read_cpus_of(
                    source,
                    f"{folder}/{index}/shared_cpu_list",
                    f"{folder}/{index}/shared_cpu_map",
                )
                cpus = tuple(sorted(everything & {cpu}.union(shared or ())))
                size = _size(text(source, f"{folder}/{index}/size"))
                found.setdefault(level, {})[cpus] = Domain(cpus=cpus, size_bytes=size)
                covered[level].update(cpus)
    return {
        level: tuple(domains[cpus] for cpus in sorted(domains)) for level, domains in found.items()
    }


def _size(found: str | None) -> int | None:
    """Bytes of "32K", "36M" or "512"."""
    if not found:
        return None
    scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(found[-1].upper(), 1)
    digits = found if scale == 1 else found[:-1]
    return int(digits) * scale if digits.isdigit() else None
