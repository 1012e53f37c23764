"""Performance and efficiency cores of hybrid CPUs.

Two kinds suffice, because threads with equal work wait for the slowest core: "performance" for the
fastest cores and those close to them, "efficiency" for the rest. They are told apart by the
kernel's cpu_capacity, else by Intel's lists, else by the maximum frequency.
"""

from __future__ import annotations

from enum import StrEnum

from cputrain.machine.cpulist import parse_list
from cputrain.machine.source import number, text
from cputrain.machine.topology import CPU_FOLDER, Cpus
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputrain.machine.source import Source

MIN_CAPACITY_RATIO = 0.75
"""Least capacity of a performance core, relative to the fastest core.

A Cortex-A710 beside an X3 has 0.83 and counts as fast; Intel's E-cores have 0.6, Arm's little cores
0.3."""

MIN_FREQUENCY_RATIO = 0.85
"""Least maximum frequency of a performance core, relative to the fastest core.

P-cores differ by up to 8 %; E-cores have 0.73 to 0.82 of the P-cores' maximum."""


class CoreKind(StrEnum):
    """Kind of core of a hybrid CPU."""

    PERFORMANCE = "performance"
    """Compute threads run here: CPUs 0-11 of a Core i7-1370P."""

    EFFICIENCY = "efficiency"
    """Loader workers run here: CPUs 12-19 of a Core i7-1370P."""


class CoreGroup(Record):
    """Logical CPUs that have the same kind of core."""

    kind: CoreKind
    """Kind of these cores."""

    cpus: Cpus
    """Online logical CPUs of this kind."""

    max_frequency_hz: int | None
    """Highest frequency of these cores in hertz; None if unknown."""


def read_kinds(source: Source, online: Cpus) -> tuple[CoreGroup, ...]:
    """Return the groups of cores, performance cores first; one group on most machines."""
    capacity = _per_cpu(source, online, "cpu_capacity")
    frequency = _per_cpu(source, online, "cpufreq/cpuinfo_max_freq")
    slow_cpus = (
        _slow_cpus(capacity, online, MIN_CAPACITY_RATIO)
        if len(capacity) == len(online)
        else _intel_efficiency_cpus(source, online)
        or (
            _slow_cpus(frequency, online, MIN_FREQUENCY_RATIO)
            if len(frequency) == len(online)
            else frozenset()
        )
    )
    groups = (
        (CoreKind.PERFORMANCE, tuple(cpu for cpu in online if cpu not in slow_cpus)),
        (CoreKind.EFFICIENCY, tuple(cpu for cpu in online if cpu in slow_cpus)),
    )
    return tuple(
        CoreGroup(
            kind=kind,
            cpus=cpus,
            max_frequency_hz=max(frequency.get(cpu, 0) for cpu in cpus) * 1000 or None,
        )
        for kind, cpus in groups
        if cpus
    )


def _per_cpu(source: Source, online: Cpus, name: str) -> dict[int, int]:
    values = {}
    for cpu in online:
        value = number(source, f"{CPU_FOLDER}/cpu{cpu}/{name}")
        if value is None:
            break  # the kernel creates the file for all CPUs or for none
        values[cpu] = value
    return values


def _slow_cpus(values: Mapping[int, int], online: Cpus, min_ratio: float) -> frozenset[int]:
    fastest = max(values.values(), default=0)
    return frozenset(cpu for cpu in online if values[cpu] < min_ratio * fastest)


def _intel_efficiency_cpus(source: Source, online: Cpus) -> frozenset[int]:
    performance_list = text(source, "/sys/devices/cpu_core/cpus")
    if not performance_list:
        return frozenset()
    try:
        return frozenset(online) - frozenset(parse_list(performance_list))
    except ValueError:
        return frozenset()
