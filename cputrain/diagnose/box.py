"""The machine as a page draws it: sockets, what shares a last cache, cores, and which are used."""

from __future__ import annotations

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Machine


class Core(Record):
    """A physical core."""

    cpus: tuple[int, ...]
    """Its hardware threads."""

    kind: str
    """ "performance", "efficiency": which kind of core it is; "" where all are of one."""

    allowed: bool
    """Whether the script may run there."""


class Shared(Record):
    """Cores that share a last cache."""

    size_bytes: int | None
    """Of that cache; None where the system does not tell, or has none."""

    cores: tuple[Core, ...]


class Socket(Record):
    """A package."""

    domains: tuple[Shared, ...]


class Box(Record):
    """All of it."""

    name: str
    """The processor's."""

    sockets: tuple[Socket, ...]
    memory_bytes: int | None
    channels: str
    """How many of the memory's channels are in use; "" where that is not known."""

    reasons: tuple[str, ...]
    """Why the script may not use all of it."""


def box_of(machine: Machine) -> Box:
    """From what is known of the machine."""
    channels = machine.memory.channels
    known = channels is not None and channels.populated is not None
    return Box(
        name=machine.model_name or machine.vendor or "unknown CPU",
        sockets=tuple(_socket(machine, frozenset(cpus)) for cpus in machine.topology.sockets),
        memory_bytes=machine.memory.total_bytes,
        channels=f"{channels.populated} of {channels.possible or '?'}"
        if channels and known
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
        Core(cpus=one, kind=kinds.get(one[0], ""), allowed=not allowed.isdisjoint(one))
        for one in topology.cores
        if one[0] in cpus
    ]
    domains = [
        Shared(size_bytes=each.size_bytes, cores=inside)
        for each in topology.l3_domains
        if (inside := tuple(one for one in cores if one.cpus[0] in each.cpus))
    ]
    within = {one for each in domains for one in each.cores}
    without = tuple(one for one in cores if one not in within)
    return Socket(
        domains=(*domains, *((Shared(size_bytes=None, cores=without),) if without else ()))
    )
