"""Sockets, L3 domains and cores of a machine, as the diagnosis page draws them."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine


class Core(Record):
    """A physical core."""

    cpus: tuple[int, ...]
    """Logical CPUs of the core."""

    kind: str
    """Kind of core, "performance" or "efficiency"; empty if all cores are alike."""

    allowed: bool
    """Whether the script may run on the core."""


class CacheDomain(Record):
    """Cores that share an L3 cache."""

    size_bytes: int | None
    """Size of the cache; None if it is unknown, or if there is no L3 cache."""

    cores: tuple[Core, ...]
    """Cores of the domain."""


class Socket(Record):
    """A processor package."""

    domains: tuple[CacheDomain, ...]
    """L3 domains of the package, and at last the cores without one."""


class MachineLayout(Record):
    """A machine's sockets and memory, and why the script may not use all of it."""

    name: str
    """Model name of the processor."""

    sockets: tuple[Socket, ...]
    """Processor packages."""

    memory_bytes: int | None
    """Size of main memory; None if unknown."""

    channels: str
    """Populated memory channels, such as "4 of 8"; empty if unknown."""

    reasons: tuple[str, ...]
    """Why the script may not use all of the machine."""


def machine_layout(machine: Machine) -> MachineLayout:
    """Return the layout of a machine, with the cores of its budget marked."""
    channels = machine.memory.channels
    is_known = channels is not None and channels.populated is not None
    return MachineLayout(
        name=machine.model_name or machine.vendor or "unknown CPU",
        sockets=tuple(_socket(machine, frozenset(cpus)) for cpus in machine.topology.sockets),
        memory_bytes=machine.memory.total_bytes,
        channels=f"{channels.populated} of {channels.possible or '?'}"
        if channels and is_known
        else "",
        reasons=machine.budget.reasons,
    )


def _socket(machine: Machine, cpus: frozenset[int]) -> Socket:
    topology = machine.topology
    allowed = frozenset(machine.budget.cpus)
    kinds = {
        cpu: kind.kind for kind in machine.kinds for cpu in kind.cpus if len(machine.kinds) > 1
    }
    cores = [
        Core(cpus=siblings, kind=kinds.get(siblings[0], ""),
             allowed=not allowed.isdisjoint(siblings))
        for siblings in topology.cores
        if siblings[0] in cpus
    ]  # fmt: skip
    domains = [
        CacheDomain(size_bytes=l3_domain.size_bytes, cores=sharing)
        for l3_domain in topology.l3_domains
        if (sharing := tuple(core for core in cores if core.cpus[0] in l3_domain.cpus))
    ]
    with_l3 = {core for domain in domains for core in domain.cores}
    without_l3 = tuple(core for core in cores if core not in with_l3)
    return Socket(
        domains=(
            *domains,
            *((CacheDomain(size_bytes=None, cores=without_l3),) if without_l3 else ()),
        )
    )
