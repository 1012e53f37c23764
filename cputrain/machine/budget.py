"""CPUs, cores and memory that remain for training once every limit is applied, with the reasons.

Compute threads gain nothing from a core's second hardware thread, so the budget counts physical
cores. A quota counts CPU seconds per second: eight keep eight cores busy, on whichever CPUs.
"""

from __future__ import annotations

from cputrain.counting import counted
from cputrain.machine.cpulist import format_list
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.limits import ProcessLimits
    from cputrain.machine.topology import Cpus, Topology


class Budget(Record):
    """CPUs this process may use, and the number of cores that its CPU time keeps busy."""

    cpus: Cpus
    """The logical CPUs this process may run on."""

    physical_cores: int
    """Number of physical cores to compute on; at least 1."""

    memory_bytes: int | None
    """Memory this process may use: the machine's, or less under a limit; None if unknown."""

    reasons: tuple[str, ...]
    """A sentence about the online CPUs, and one for each limit that reduces the budget."""


def cores_within(topology: Topology, cpus: Cpus) -> tuple[Cpus, ...]:
    """Return the cores that contain any of `cpus`, each restricted to these CPUs."""
    allowed = frozenset(cpus)
    usable = (tuple(cpu for cpu in core if cpu in allowed) for core in topology.cores)
    return tuple(core for core in usable if core)


def make_budget(topology: Topology, limits: ProcessLimits, total_memory: int | None) -> Budget:
    """Return the budget under affinity mask, cpuset, quota, Slurm's grant and memory limit.

    Args:
        topology: CPUs and cores of the machine.
        limits: Restrictions of this process.
        total_memory: Memory of the machine in bytes; None if unknown.
    """
    cpus = topology.online
    reasons = [f"the machine has {_describe_cpus(topology, cpus)} online"]
    for name, allowed, allowed_from in (
        ("the affinity mask", limits.affinity, "inherited from the parent process"),
        ("the cpuset", limits.cpuset, limits.cpuset_from),
    ):
        if allowed is None:
            continue
        remaining = tuple(cpu for cpu in cpus if cpu in frozenset(allowed))
        if remaining and remaining != cpus:
            cpus = remaining
            reasons.append(
                f"{name} leaves {_describe_cpus(topology, cpus)}: "
                f"CPUs {format_list(cpus)} ({allowed_from})"
            )
    num_cores = len(cores_within(topology, cpus))
    if limits.quota_cpus is not None and limits.quota_cpus < num_cores:
        num_cores = max(1, int(limits.quota_cpus))
        reasons.append(
            f"a CPU quota of {limits.quota_cpus:g} allows {_describe_cores(num_cores)}, rounded "
            f"down to avoid throttling ({limits.quota_from})"
        )
    if limits.slurm_cpus is not None and limits.slurm_cpus < num_cores:
        num_cores = limits.slurm_cpus
        reasons.append(
            f"Slurm grants {_describe_cores(num_cores)} ({limits.slurm_from}={limits.slurm_cpus})"
        )
    memory_bytes = total_memory
    if limits.memory_bytes is not None and (
        memory_bytes is None or limits.memory_bytes < memory_bytes
    ):
        memory_bytes = limits.memory_bytes
        reasons.append(
            f"memory is limited to {memory_bytes / 2**30:.3g} GiB ({limits.memory_from})"
        )
    return Budget(
        cpus=cpus,
        physical_cores=max(1, num_cores),
        memory_bytes=memory_bytes,
        reasons=tuple(reasons),
    )


def _describe_cpus(topology: Topology, cpus: Cpus) -> str:
    num_cores = len(cores_within(topology, cpus))
    return f"{_describe_cores(num_cores)} ({counted(len(cpus), 'logical CPU')})"


def _describe_cores(count: int) -> str:
    return counted(count, "physical core")
