"""What this process may use of the machine, and who said so."""

from __future__ import annotations

import os

from cputrain.machine.cgroups import read_grant
from cputrain.machine.cpulist import parse_list, parse_mask
from cputrain.machine.source import text
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputrain.machine.source import Source
    from cputrain.machine.topology import Cpus


class ProcessLimits(Record):
    """Restrictions as they were found, each beside the place that imposes it."""

    affinity: Cpus | None
    """The CPUs of the process's affinity mask; None where there is no such thing."""

    cpuset: Cpus | None
    """The CPUs its control group grants; None where no group restricts them."""

    cpuset_from: str = ""
    """The file behind `cpuset`."""

    quota_cpus: float | None
    """CPU seconds per second of its control groups, the tightest up the tree."""

    quota_from: str = ""
    """The file behind `quota_cpus`."""

    slurm_cpus: int | None = None
    """CPUs that Slurm granted to this task."""

    slurm_from: str = ""
    """The variable behind `slurm_cpus`."""

    memory_bytes: int | None
    """What its control groups let it hold, the tightest up the tree."""

    memory_from: str = ""
    """The file behind `memory_bytes`."""


def read_limits(source: Source, online: Cpus) -> ProcessLimits:
    """The limits of this process, or of the one whose /proc/self was captured."""
    grant = read_grant(source)
    there = frozenset(online)
    slurm_cpus, slurm_from = _read_slurm(source.environment())
    return ProcessLimits(
        affinity=_read_affinity(source, there),
        cpuset=None if grant.cpus is None else tuple(cpu for cpu in grant.cpus if cpu in there),
        cpuset_from=grant.cpus_from,
        quota_cpus=grant.quota_cpus,
        quota_from=grant.quota_from,
        slurm_cpus=slurm_cpus,
        slurm_from=slurm_from,
        memory_bytes=grant.memory_bytes,
        memory_from=grant.memory_from,
    )


def _read_affinity(source: Source, online: frozenset[int]) -> Cpus | None:
    if source.live and hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(0)))
    for line in (text(source, "/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        parse = {"Cpus_allowed": parse_mask, "Cpus_allowed_list": parse_list}.get(name)
        if parse is not None:
            try:
                return tuple(cpu for cpu in parse(value) if cpu in online)
            except ValueError:
                continue
    return None


def _read_slurm(environment: Mapping[str, str]) -> tuple[int | None, str]:
    """Slurm's grant: per task where it was asked for, else what the step has on this node."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        found = environment.get(name, "")
        if found.isdecimal() and int(found) > 0:
            return int(found), name
    return None, ""
