"""Cores that a process computes on: the machine's CPU budget, or a rank's share of it.

The policies for threads, placement, loaders and replicas all use it, so that they agree.
"""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.errors import UsageError
from cputrain.machine import CoreKind, cores_within, format_list, parse_list
from cputrain.record import Record
from cputrain.settings.core.values import shortened

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Cpus, Machine
    from cputrain.settings.core.decision import Request


class Share(Record):
    """Cores of one process."""

    fast: tuple[Cpus, ...]
    """Cores to compute on."""

    frugal: tuple[Cpus, ...]
    """Efficiency cores, for loader workers; empty on most machines."""

    cores: int
    """Number of cores whose CPU time is available: under a quota, fewer than `fast`."""

    divided: bool
    """Whether this is a part of the budget, which was divided among ranks."""

    reason: str
    """Why these cores, as a clause for the reasons of decisions."""

    @property
    def cpus(self) -> Cpus:
        """All logical CPUs of the cores, efficiency cores included."""
        return tuple(sorted(cpu for core in (*self.fast, *self.frugal) for cpu in core))


def share_of(machine: Machine, request: Request) -> Share:
    """Return the cores that a process computes on.

    Raises:
        UsageError: --placement lists CPUs that this process may not use.
    """
    budget = machine.budget
    frugal_cpus = {
        cpu for kind in machine.kinds if kind.kind is CoreKind.EFFICIENCY for cpu in kind.cpus
    }
    user_cpus = asked_cpus(machine, request)
    cores = cores_within(machine.topology, budget.cpus if user_cpus is None else user_cpus)
    fast = tuple(core for core in cores if core[0] not in frugal_cpus)
    frugal = tuple(core for core in cores if core[0] in frugal_cpus)
    if not fast:  # the CPU mask has efficiency cores only
        fast, frugal = frugal, ()
    count = min(budget.physical_cores, len(fast))
    whole = Share(
        fast=fast,
        frugal=frugal,
        cores=count,
        divided=False,
        reason=_why(machine, count, len(fast))
        if user_cpus is None or len(user_cpus) == len(budget.cpus)
        else f"{request.settings['placement'].where} leaves CPUs {format_list(user_cpus)}",
    )
    rank = request.rank
    if rank is None or (rank.binds and _has_own_cpus(machine, rank.count)):
        return whole
    return Share(
        fast=_part(_by_locality(machine, fast), rank.index, rank.count),
        frugal=_part(frugal, rank.index, rank.count) if len(frugal) >= rank.count else (),
        cores=max(1, count // rank.count),
        divided=True,
        reason=f"rank {rank.index} of the {rank.count} that {rank.launcher} started on this "
        f"machine gets its part of {counted(count, 'core')}",
    )


def asked_cpus(machine: Machine, request: Request) -> Cpus | None:
    """Return the CPUs that --placement lists; None if it is not set or lists none.

    Raises:
        UsageError: The list is malformed, or has CPUs that this process may not use.
    """
    user = request.setting("placement")
    if user is None or user.value in ("none", "cores"):
        return None
    allowed = machine.budget.cpus
    try:
        cpus = parse_list(user.value)
    except ValueError:
        cpus = ()
    if not cpus or not set(cpus) <= set(allowed):
        raise UsageError(
            user.where,
            "must be auto, none, cores or a list of CPUs this process may use "
            f"({format_list(allowed)})",
            found=shortened(user.value),
            do=f"Say for example --placement {format_list(allowed[: max(1, len(allowed) // 2)])}.",
        )
    return cpus


def _has_own_cpus(machine: Machine, ranks: int) -> bool:
    """Return whether the launcher has bound its ranks to CPUs of their own.

    It has if the mask of this process is at most one rank's part of the CPUs of the job.
    """
    job = machine.limits.cpuset or machine.topology.online
    return len(machine.budget.cpus) * ranks <= len(job)


def _by_locality(machine: Machine, cores: tuple[Cpus, ...]) -> tuple[Cpus, ...]:
    """Sort cores by NUMA node and L3 cache, so that contiguous parts share them."""
    node = {cpu: node.id for node in machine.nodes for cpu in node.cpus}
    cache = {cpu: domain.cpus[0] for domain in machine.topology.l3_domains for cpu in domain.cpus}
    return tuple(
        sorted(cores, key=lambda core: (node.get(core[0], 0), cache.get(core[0], 0), core))
    )


def _part(cores: tuple[Cpus, ...], index: int, count: int) -> tuple[Cpus, ...]:
    """Return the contiguous part of a rank; a single core if there are fewer cores than ranks."""
    if len(cores) < count:
        return (cores[index % len(cores)],)
    return cores[index * len(cores) // count : (index + 1) * len(cores) // count]


def _why(machine: Machine, count: int, fast: int) -> str:
    budget = machine.budget
    if count < fast:
        return budget.reasons[-1] if len(budget.reasons) > 1 else "the CPU budget is smaller"
    if len(machine.kinds) > 1 and fast < budget.physical_cores:
        return (
            f"{fast} of the {budget.physical_cores} cores are fast; operators would wait for "
            "slower ones"
        )
    if len(budget.reasons) > 1:
        return budget.reasons[-1]
    if len(budget.cpus) > budget.physical_cores:
        return "one for each physical core, whose arithmetic units two hardware threads share"
    return "one for each core"
