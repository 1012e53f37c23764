"""What is left for training once every limit is applied, in physical cores, with every reason.

Compute threads gain nothing from a core's second hardware thread, so the budget counts cores. A
quota counts CPU seconds: eight of them feed eight cores, whatever hangs beside them.
"""

from __future__ import annotations

from cputrain.machine.cpulist import format_list
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.limits import ProcessLimits
    from cputrain.machine.topology import Cpus, Topology


class Budget(Record):
    """CPUs that may be used, and how many cores' worth of time there is on them."""

    cpus: Cpus
    """The logical CPUs this process may run on."""

    physical_cores: int
    """Cores' worth of compute: at least 1."""

    memory_bytes: int | None
    """Memory this process may hold: the machine's, or less under a limit."""

    reasons: tuple[str, ...]
    """One sentence for each cut, and one for where it started."""


def cores_within(topology: Topology, cpus: Cpus) -> tuple[Cpus, ...]:
    """The cores that have any of these CPUs, each with just those."""
    allowed = frozenset(cpus)
    cut = (tuple(cpu for cpu in core if cpu in allowed) for core in topology.cores)
    return tuple(core for core in cut if core)


def make_budget(topology: Topology, limits: ProcessLimits, total_memory: int | None) -> Budget:
    """Affinity, cpuset, quota and Slurm's grant, intersected; the tightest memory limit."""
    cpus = topology.online
    reasons = [f"the machine has {_count(topology, cpus)} online"]
    for name, found, origin in (
        ("the affinity mask", limits.affinity, "as inherited from whatever started this process"),
        ("the cpuset", limits.cpuset, limits.cpuset_from),
    ):
        if found is None:
            continue
        left = tuple(cpu for cpu in cpus if cpu in frozenset(found))
        if left and left != cpus:
            cpus = left
            reasons.append(
                f"{name} leaves {_count(topology, cpus)}: CPUs {format_list(cpus)} ({origin})"
            )
    cores = len(cores_within(topology, cpus))
    if limits.quota_cpus is not None and limits.quota_cpus < cores:
        cores = max(1, int(limits.quota_cpus))
        reasons.append(
            f"a CPU quota of {limits.quota_cpus:g} feeds {_cores(cores)}, rounded down so that it "
            f"is never overdrawn ({limits.quota_from})"
        )
    if limits.slurm_cpus is not None and limits.slurm_cpus < cores:
        cores = limits.slurm_cpus
        reasons.append(f"Slurm grants {_cores(cores)} ({limits.slurm_from}={limits.slurm_cpus})")
    memory = total_memory
    if limits.memory_bytes is not None and (memory is None or limits.memory_bytes < memory):
        memory = limits.memory_bytes
        reasons.append(f"memory is limited to {memory / 2**30:.3g} GiB ({limits.memory_from})")
    return Budget(
        cpus=cpus, physical_cores=max(1, cores), memory_bytes=memory, reasons=tuple(reasons)
    )


def _count(topology: Topology, cpus: Cpus) -> str:
    cores = len(cores_within(topology, cpus))
    return f"{_cores(cores)} ({len(cpus)} logical CPU{'s' * (len(cpus) != 1)})"


def _cores(count: int) -> str:
    return f"{count} physical core{'s' * (count != 1)}"
