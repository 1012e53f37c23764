"""CPU topology: logical CPUs, cores, dies, sockets and shared caches.

Membership is read from the masks the kernel gives, not from ids: core ids repeat between clusters
on Arm, sockets and nodes are numbered with gaps, and CPU n need not be core n.
"""

from __future__ import annotations

from cputrain.machine.cpuinfo import parse_blocks
from cputrain.machine.cpulist import parse_list, parse_mask
from cputrain.machine.source import number, text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.machine.source import Source

CPU_FOLDER = "/sys/devices/system/cpu"

MODULE_FAMILIES = ("21", "22")
"""AMD CPU families with modules: Bulldozer to Excavator, and Jaguar."""

Cpus = tuple[int, ...]


class Domain(Record):
    """Logical CPUs that share one cache."""

    cpus: Cpus
    """Online CPUs that share the cache."""

    size_bytes: int | None
    """Cache size in bytes; None if the kernel does not report it, as on many Arm machines."""


class Topology(Record):
    """Logical CPUs, and the cores, dies, sockets and caches they share."""

    online: Cpus
    """CPUs the kernel schedules on."""

    offline: Cpus
    """CPUs present but offline."""

    cores: tuple[Cpus, ...]
    """The hardware threads of each physical core."""

    dies: tuple[Cpus, ...]
    """The CPUs of each die; empty if the kernel does not report dies."""

    sockets: tuple[Cpus, ...]
    """The CPUs of each package."""

    l1_domains: tuple[Domain, ...]
    """Level-1 data caches."""

    l2_domains: tuple[Domain, ...]
    """Level-2 caches."""

    l3_domains: tuple[Domain, ...]
    """Level-3 caches; empty where there are none or a hypervisor hides them."""


def read_cpus(source: Source, mask_path: str, list_path: str) -> Cpus | None:
    """Read CPUs from a mask file, else from a list file; return None without either.

    The mask comes first: every kernel has it, and other tools read it too.
    """
    for path, parse in ((mask_path, parse_mask), (list_path, parse_list)):
        content = text(source, path) if path else None
        if content:
            try:
                return parse(content)
            except ValueError:
                continue  # an invalid file is treated like an absent one
    return None


def read_topology(source: Source, *, caches: bool = True) -> Topology:
    """Read the topology; `online` is empty if no CPU is found.

    Caches are most of the files and no single-process policy needs them, so a launch on hundreds
    of CPUs skips them.
    """
    online, offline = _read_online(source)
    cores = _read_cores(source, online)
    domains: dict[int, tuple[Domain, ...]] = {}
    if caches:
        from cputrain.machine.caches import read_caches

        domains = read_caches(source, cores, online)
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
    online = _read_list(source, "online")
    folders = sorted(
        int(name[3:])
        for name in source.names(CPU_FOLDER)
        if name.startswith("cpu") and name[3:].isdecimal()
    )
    present = _read_list(source, "present") or tuple(folders)
    if online is None:
        # Before Linux 2.6.26 only per-CPU files exist, and the boot CPU has none.
        online = tuple(
            cpu for cpu in folders if number(source, f"{CPU_FOLDER}/cpu{cpu}/online") in (None, 1)
        )
    if not online:
        online = _read_cpuinfo_cpus(source)
    return online, tuple(cpu for cpu in present if cpu not in set(online))


def _read_list(source: Source, name: str) -> Cpus | None:
    return read_cpus(source, "", f"{CPU_FOLDER}/{name}")


def _read_cpuinfo_cpus(source: Source) -> Cpus:
    cpus = set()
    for line in (text(source, "/proc/cpuinfo", 1 << 24) or "").splitlines():
        key, _, value = line.partition(":")
        if key.startswith("processor"):  # "processor : 0", on s390 "processor 0: version = FF, …"
            digits = key[9:].strip() or value.strip()
            if digits.isdecimal():
                cpus.add(int(digits))
    return tuple(sorted(cpus))


def _read_cores(source: Source, online: Cpus) -> tuple[Cpus, ...]:
    def siblings(folder: str) -> Cpus | None:
        return _read_first(source, folder, "core_cpus", "thread_siblings")

    cores = _group_by_mask(online, siblings)
    if len(cores) == len(online) or not _has_modules(source):
        return cores
    return tuple(sorted(cpus for core in cores for cpus in _group_by_id(source, core, "core_id")))


def _has_modules(source: Source) -> bool:
    """Return whether the CPU has modules: Bulldozer lists a module's two cores as siblings."""
    block = parse_blocks(text(source, "/proc/cpuinfo", 1 << 12) or "")[:1] or [{}]
    return (
        block[0].get("vendor_id") == "AuthenticAMD"
        and block[0].get("cpu family") in MODULE_FAMILIES
    )


def _group_by_id(source: Source, cpus: Cpus, name: str) -> tuple[Cpus, ...]:
    """Group CPUs by the integer in their topology file `name`."""
    groups: dict[int | None, list[int]] = {}
    for cpu in cpus:
        group_id = number(source, f"{CPU_FOLDER}/cpu{cpu}/topology/{name}")
        groups.setdefault(group_id, []).append(cpu)
    return tuple(sorted(tuple(group) for group in groups.values()))


def _read_sockets(source: Source, online: Cpus) -> tuple[Cpus, ...]:
    def package(folder: str) -> Cpus | None:
        return _read_first(source, folder, "package_cpus", "core_siblings")

    if online and package(f"{CPU_FOLDER}/cpu{online[0]}/topology") is None:
        return _group_by_id(source, online, "physical_package_id")
    return _group_by_mask(online, package)


def _read_dies(source: Source, online: Cpus) -> tuple[Cpus, ...]:
    def die(folder: str) -> Cpus | None:
        # With a die_id of -1 the firmware reports no dies, and the mask is meaningless.
        die_id = number(source, f"{folder}/die_id")
        return _read_first(source, folder, "die_cpus") if (die_id or 0) >= 0 else None

    if not online or die(f"{CPU_FOLDER}/cpu{online[0]}/topology") is None:
        return ()
    dies = _group_by_mask(online, die)
    return dies if any(len(cpus) > 1 for cpus in dies) else ()


def _read_first(source: Source, folder: str, *names: str) -> Cpus | None:
    """Read the first CPU mask that exists among newer and older file names."""
    for name in names:
        cpus = read_cpus(source, f"{folder}/{name}", f"{folder}/{name}_list")
        if cpus:
            return cpus
    return None


def _group_by_mask(online: Cpus, read: Callable[[str], Cpus | None]) -> tuple[Cpus, ...]:
    """Partition the online CPUs by each CPU's mask; a CPU without a mask is a group of one."""
    online_set = set(online)
    remaining = set(online)
    groups = []
    for cpu in online:
        if cpu not in remaining:
            continue
        mask = read(f"{CPU_FOLDER}/cpu{cpu}/topology")
        group = {cpu}.union(mask or ()) & online_set & remaining
        remaining -= group
        groups.append(tuple(sorted(group)))
    return tuple(sorted(groups))
