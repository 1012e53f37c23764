"""The machine on macOS, Windows and the BSDs: what portable means tell, in the same shape."""

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

UNTOLD = "only Linux tells it"


def read_portable_machine(*, detail: bool) -> Machine:
    """This machine; everything that could not be found out is named in `unknown`."""
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
    told = set(facts.isa)
    return Machine(
        system=facts.system,
        vendor=facts.vendor,
        family=facts.family,
        model=facts.model,
        model_name=facts.model_name,
        isa=tuple(name for name in ISA_NAMES if name in told),
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
            "sockets": f"counted as one: {UNTOLD}",
            "numa_nodes": f"counted as one: {UNTOLD}",
            **dict.fromkeys(("caches", "cpuset", "quota_cpus", "memory_channels"), UNTOLD),
            "accelerators": UNTOLD,
        },
        details=_details(facts) if detail else None,
    )


def _cores(facts: PortableFacts) -> tuple[Cpus, ...]:
    """Which CPUs make a core is not told: neighbours are put together, as these systems number."""
    physical = facts.physical or facts.performance_cores or facts.logical
    if not 0 < physical <= facts.logical:
        physical = facts.logical
    return tuple(
        tuple(range(index * facts.logical // physical, (index + 1) * facts.logical // physical))
        for index in range(physical)
    )


def _kinds(facts: PortableFacts, cores: tuple[Cpus, ...]) -> tuple[CoreGroup, ...]:
    """Fast cores first, as many as are told; which CPUs they are matters to nobody here, since
    these systems place threads themselves."""
    fast = facts.performance_cores or len(cores)
    parts = (
        (CoreKind.PERFORMANCE, cores[:fast]),
        (CoreKind.EFFICIENCY, cores[fast:] if facts.efficiency_cores else ()),
    )
    return tuple(
        CoreGroup(
            kind=kind, cpus=tuple(cpu for core in part for cpu in core), max_frequency_hz=None
        )
        for kind, part in parts
        if part
    )


def _details(facts: PortableFacts) -> Details:
    return Details(
        frequency=Frequency(
            current_hz=facts.frequency_hz, max_hz=facts.max_frequency_hz, governor=None
        ),
        accelerators=(),
        opencl_drivers=(),
    )
