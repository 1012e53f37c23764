"""The `Machine` on macOS, Windows and the BSDs, from portable facts."""

from __future__ import annotations

from cputrain.machine.budget import make_budget
from cputrain.machine.cpuinfo import ISA_NAMES
from cputrain.machine.facts import Details, Machine
from cputrain.machine.frequency import Frequency
from cputrain.machine.kinds import CoreGroup, CoreKind
from cputrain.machine.limits import ProcessLimits
from cputrain.machine.memory import MachineMemory
from cputrain.machine.numa import Node
from cputrain.machine.portable import PortableFacts, read_portable
from cputrain.machine.topology import Cpus, Topology

LINUX_ONLY = "it is read only on Linux"


def read_portable_machine(*, detail: bool) -> Machine:
    """Read this machine; `unknown` names each fact that the system does not provide."""
    facts = read_portable(names=detail)
    cores = _cores(facts)
    online = tuple(range(facts.logical))
    topology = Topology(
        online=online,
        offline=(),
        cores=cores,
        dies=(),
        sockets=(online,),
        l1_domains=(),
        l2_domains=(),
        l3_domains=(),
    )
    limits = ProcessLimits(affinity=facts.affinity, cpuset=None, quota_cpus=None, memory_bytes=None)
    flags = set(facts.isa)
    return Machine(
        system=facts.system,
        vendor=facts.vendor,
        family=facts.family,
        model=facts.model,
        model_name=facts.model_name,
        isa=tuple(name for name in ISA_NAMES if name in flags),
        virtual=False,
        topology=topology,
        kinds=_kinds(facts, cores),
        nodes=(Node(id=0, cpus=online, memory_bytes=facts.memory_bytes, distances=()),),
        memory=MachineMemory(
            total_bytes=facts.memory_bytes,
            available_bytes=facts.available_memory_bytes,
            huge_pages=None,
            shared_huge_pages=None,
            channels=None,
        ),
        libc=None,
        preloads={},
        limits=limits,
        budget=make_budget(topology, limits, facts.memory_bytes),
        unknown={
            **facts.unknown,
            "sockets": f"counted as one: {LINUX_ONLY}",
            "numa_nodes": f"counted as one: {LINUX_ONLY}",
            **dict.fromkeys(("caches", "cpuset", "quota_cpus", "memory_channels"), LINUX_ONLY),
            "accelerators": LINUX_ONLY,
        },
        details=_details(facts) if detail else None,
    )


def _cores(facts: PortableFacts) -> tuple[Cpus, ...]:
    """Return the CPUs of each core, assuming that a core's CPUs have consecutive numbers.

    These systems number CPUs so, and do not report which CPUs share a core.
    """
    num_cores = facts.physical or facts.performance_cores or facts.logical
    if not 0 < num_cores <= facts.logical:
        num_cores = facts.logical
    return tuple(
        tuple(range(index * facts.logical // num_cores, (index + 1) * facts.logical // num_cores))
        for index in range(num_cores)
    )


def _kinds(facts: PortableFacts, cores: tuple[Cpus, ...]) -> tuple[CoreGroup, ...]:
    """Return the core groups, assuming that performance cores have the lowest numbers.

    Only their sizes matter, because these systems place threads themselves.
    """
    num_performance = facts.performance_cores or len(cores)
    cores_by_kind = (
        (CoreKind.PERFORMANCE, cores[:num_performance]),
        (CoreKind.EFFICIENCY, cores[num_performance:] if facts.efficiency_cores else ()),
    )
    return tuple(
        CoreGroup(
            kind=kind, cpus=tuple(cpu for core in kind_cores for cpu in core), max_frequency_hz=None
        )
        for kind, kind_cores in cores_by_kind
        if kind_cores
    )


def _details(facts: PortableFacts) -> Details:
    return Details(
        frequency=Frequency(
            current_hz=facts.frequency_hz, max_hz=facts.max_frequency_hz, governor=None
        ),
        accelerators=(),
        opencl_drivers=(),
    )
