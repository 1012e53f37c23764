"""Kinds of core: which are fast and which are frugal, on CPUs that have both.

Two names suffice, because threads of equal work wait for the slowest core: "performance" for the
fastest cores and those close to them, "efficiency" for the rest. The kernel's capacity is asked
first, then Intel's lists, then the maximum frequency.
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

CLOSE_IN_CAPACITY = 0.75
"""Cortex-A710 beside X3 is 0.83 and works with it; Intel's E-cores are 0.6, Arm's little 0.3."""

CLOSE_IN_FREQUENCY = 0.85
"""Favoured cores differ by up to 8 %; E-cores run at 0.73 to 0.82 of their P-cores' maximum."""


class CoreKind(StrEnum):
    """What a kind of core is made for."""

    PERFORMANCE = "performance"
    """Compute threads run here: CPUs 0-11 of a Core i7-1370P."""

    EFFICIENCY = "efficiency"
    """Room for loader workers: CPUs 12-19 of a Core i7-1370P."""


class CoreGroup(Record):
    """The logical CPUs of one kind of core."""

    kind: CoreKind
    """Fast or frugal."""

    cpus: Cpus
    """Its logical CPUs, online ones only."""

    max_frequency_hz: int | None
    """The highest frequency any of them may reach; None where it is not told."""


def read_kinds(source: Source, online: Cpus) -> tuple[CoreGroup, ...]:
    """One kind on most machines; fast before frugal on hybrid ones."""
    capacity = _per_cpu(source, online, "cpu_capacity")
    frequency = _per_cpu(source, online, "cpufreq/cpuinfo_max_freq")
    slow = (
        _slow(capacity, online, CLOSE_IN_CAPACITY)
        if len(capacity) == len(online)
        else _listed_atoms(source, online)
        or (
            _slow(frequency, online, CLOSE_IN_FREQUENCY)
            if len(frequency) == len(online)
            else frozenset()
        )
    )
    groups = (
        (CoreKind.PERFORMANCE, tuple(cpu for cpu in online if cpu not in slow)),
        (CoreKind.EFFICIENCY, tuple(cpu for cpu in online if cpu in slow)),
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
    found = {}
    for cpu in online:
        value = number(source, f"{CPU_FOLDER}/cpu{cpu}/{name}")
        if value is None:
            break  # the kernel has the file for every CPU or for none
        found[cpu] = value
    return found


def _slow(values: Mapping[int, int], online: Cpus, close: float) -> frozenset[int]:
    fastest = max(values.values(), default=0)
    return frozenset(cpu for cpu in online if values[cpu] < close * fastest)


def _listed_atoms(source: Source, online: Cpus) -> frozenset[int]:
    fast = text(source, "/sys/devices/cpu_core/cpus")
    if not fast:
        return frozenset()
    try:
        return frozenset(online) - frozenset(parse_list(fast))
    except ValueError:
        return frozenset()
