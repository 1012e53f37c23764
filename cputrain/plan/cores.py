"""Which cores a process computes on: its budget, or its rank's share of it.

Several policies ask this; it is worked out in one place so that threads, placement and loader
agree.
"""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.machine import CoreKind, cores_within, format_list, parse_list
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine import Cpus, Machine
    from cputrain.plan.decision import Request


class Share(Record):
    """The cores of one process."""

    fast: tuple[Cpus, ...]
    """Cores to compute on."""

    frugal: tuple[Cpus, ...]
    """Efficiency cores beside them; empty on most machines."""

    cores: int
    """How many cores' worth of time there is: fewer than `fast` under a quota."""

    divided: bool
    """Whether the budget was divided among ranks here."""

    reason: str
    """How it came about, as half a sentence."""

    @property
    def cpus(self) -> Cpus:
        """All logical CPUs of the share."""
        return tuple(sorted(cpu for core in (*self.fast, *self.frugal) for cpu in core))


def share_of(machine: Machine, request: Request) -> Share:
    """The cores this process may count on."""
    budget = machine.budget
    frugal_cpus = {
        cpu for kind in machine.kinds if kind.kind is CoreKind.EFFICIENCY for cpu in kind.cpus
    }
    asked = asked_cpus(machine, request)
    cores = cores_within(machine.topology, budget.cpus if asked is None else asked)
    fast = tuple(core for core in cores if core[0] not in frugal_cpus)
    frugal = tuple(core for core in cores if core[0] in frugal_cpus)
    if not fast:  # confined to efficiency cores, by a mask say: they are what there is
        fast, frugal = frugal, ()
    count = min(budget.physical_cores, len(fast))
    whole = Share(
        fast=fast,
        frugal=frugal,
        cores=count,
        divided=False,
        reason=_why(machine, count, len(fast))
        if asked is None or len(asked) == len(budget.cpus)
        else f"{request.settings['placement'].where} leaves CPUs {format_list(asked)}",
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
        f"machine gets its part of {count} cores",
    )


def asked_cpus(machine: Machine, request: Request) -> Cpus | None:
    """The CPUs that --placement lists; None where it lists none."""
    asked = request.setting("placement")
    if asked is None or asked.value in ("none", "cores"):
        return None
    allowed = machine.budget.cpus
    try:
        cpus = parse_list(asked.value)
    except ValueError:
        cpus = ()
    if not cpus or not set(cpus) <= set(allowed):
        raise UsageError(
            asked.where,
            "must be auto, none, cores or a list of CPUs this process may use "
            f"({format_list(allowed)})",
            found=shortened(asked.value),
            do=f"Say for example --placement {format_list(allowed[: max(1, len(allowed) // 2)])}.",
        )
    return cpus


def shortened(value: str) -> str:
    """What was typed, quoted, and short enough for a message."""
    return repr(value if len(value) <= 60 else f"{value[:57]}...")


def _has_own_cpus(machine: Machine, ranks: int) -> bool:
    """Whether a launcher that can bind ranks has done so: the mask is a rank's part or less of
    what the job was given."""
    job = machine.limits.cpuset or machine.topology.online
    return len(machine.budget.cpus) * ranks <= len(job)


def _by_locality(machine: Machine, cores: tuple[Cpus, ...]) -> tuple[Cpus, ...]:
    """Cores ordered so that neighbours in the order share a node and a cache."""
    node = {cpu: node.id for node in machine.nodes for cpu in node.cpus}
    cache = {cpu: domain.cpus[0] for domain in machine.topology.l3_domains for cpu in domain.cpus}
    return tuple(
        sorted(cores, key=lambda core: (node.get(core[0], 0), cache.get(core[0], 0), core))
    )


def _part(cores: tuple[Cpus, ...], index: int, count: int) -> tuple[Cpus, ...]:
    """An even part, contiguous; ranks beyond the number of cores share them in turn."""
    if len(cores) < count:
        return (cores[index % len(cores)],)
    return cores[index * len(cores) // count : (index + 1) * len(cores) // count]


def _why(machine: Machine, count: int, fast: int) -> str:
    budget = machine.budget
    if count < fast:
        return budget.reasons[-1] if len(budget.reasons) > 1 else "the budget is smaller"
    if len(machine.kinds) > 1 and fast < budget.physical_cores:
        return f"{fast} of the {budget.physical_cores} cores are fast; slower ones hold them up"
    if len(budget.reasons) > 1:
        return budget.reasons[-1]
    return "one for each physical core; second hardware threads share its arithmetic units"
