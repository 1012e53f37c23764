"""CPU and memory limits of this process, each with its source."""

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
    """CPU and memory limits of this process, each with the file or variable that sets it."""

    affinity: Cpus | None
    """CPUs of the affinity mask; None if the system has none."""

    cpuset: Cpus | None
    """CPUs of the control group's cpuset; None if no group restricts them."""

    cpuset_from: str = ""
    """File that sets `cpuset`."""

    quota_cpus: float | None
    """CPU quota in CPU seconds per second: the smallest of its control groups."""

    quota_from: str = ""
    """File that sets `quota_cpus`."""

    slurm_cpus: int | None = None
    """CPUs that Slurm grants to this task; None outside Slurm."""

    slurm_from: str = ""
    """Environment variable that sets `slurm_cpus`."""

    memory_bytes: int | None
    """Memory limit in bytes: the smallest of its control groups."""

    memory_from: str = ""
    """File that sets `memory_bytes`."""


def read_limits(source: Source, online: Cpus) -> ProcessLimits:
    """Read the limits of this process, or of the process that captured `source`."""
    grant = read_grant(source)
    online_set = frozenset(online)
    slurm_cpus, slurm_from = _read_slurm(source.environment())
    return ProcessLimits(
        affinity=_read_affinity(source, online_set),
        cpuset=None
        if grant.cpus is None
        else tuple(cpu for cpu in grant.cpus if cpu in online_set),
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
    """Return Slurm's CPUs per task if requested, else the step's CPUs on this node."""
    for name in ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE"):
        value = environment.get(name, "")
        if value.isdecimal() and int(value) > 0:
            return int(value), name
    return None, ""
