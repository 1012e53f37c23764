"""The machine as one value: what is there, what we may use of it, and how we know."""

from __future__ import annotations

import sys

from cputrain.errors import SourceError
from cputrain.machine.budget import Budget, make_budget
from cputrain.machine.cpuinfo import read_identity
from cputrain.machine.kinds import CoreGroup, read_kinds
from cputrain.machine.libraries import read_gpu_driver, read_libc, read_preloads
from cputrain.machine.limits import ProcessLimits, read_limits
from cputrain.machine.memory import MachineMemory, read_memory
from cputrain.machine.numa import Node, read_nodes
from cputrain.machine.source import RootSource
from cputrain.machine.topology import Topology, read_topology
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.machine.accelerators import Accelerator
    from cputrain.machine.frequency import Frequency
    from cputrain.machine.opencl_drivers import OpenCLDriver
    from cputrain.machine.source import Source

SCHEMA_VERSION = 1


class Details(Record):
    """What only a report asks for; a launch does without, to be quick."""

    frequency: Frequency
    """Clocks and the governor."""

    accelerators: tuple[Accelerator, ...]
    """GPUs and the like."""

    opencl_drivers: tuple[OpenCLDriver, ...]
    """Installed OpenCL drivers."""


class Machine(Record):
    """Facts, limits and the budget that follows from them. It decides nothing."""

    system: str
    """"linux", "darwin", "win32": sys.platform of the machine described."""

    vendor: str | None
    """"AuthenticAMD", "GenuineIntel", "ARM", "IBM", …"""

    family: int | None
    """x86 family."""

    model: int | None
    """x86 model."""

    model_name: str | None
    """The name it is sold under."""

    isa: tuple[str, ...]
    """Instruction sets that matter for training."""

    virtual: bool
    """Whether a hypervisor shows itself."""

    topology: Topology
    """CPUs and what they share."""

    kinds: tuple[CoreGroup, ...]
    """Fast and frugal cores; one kind on most machines."""

    nodes: tuple[Node, ...]
    """NUMA nodes."""

    memory: MachineMemory
    """Sizes, paging, channels."""

    libc: tuple[int, int] | None
    """The version of glibc; None for another C library, or where it cannot be told."""

    preloads: dict[str, str]
    """Installed allocators that could be preloaded, by name."""

    gpu_driver: str = ""
    """The compute driver of a GPU, where one is loaded."""

    limits: ProcessLimits
    """What restricts this process."""

    budget: Budget
    """What is left once every limit is applied."""

    unknown: dict[str, str]
    """What could not be found out, and why."""

    details: Details | None = None
    """Facts for reports; None for a launch."""

    def fingerprint(self) -> str:
        """What a saved plan or measurement is tied to, readable so that a difference explains."""
        memory = self.memory.total_bytes or 0
        return (
            f"{self.model_name or self.vendor or 'unknown CPU'}, {len(self.topology.cores)} cores, "
            f"{len(self.topology.online)} CPUs, {len(self.topology.sockets)} sockets, "
            f"{len(self.nodes)} nodes, {memory / 2**30:.0f} GiB"
        )

    def document(self) -> dict[str, Any]:
        """The JSON document of `cputrain info --json`."""
        topology = self.topology
        facts: dict[str, Any] = {
            "system": self.system,
            "vendor": self.vendor,
            "family": self.family,
            "model": self.model,
            "model_name": self.model_name,
            "isa": self.isa,
            "virtual": self.virtual,
            "online_cpus": topology.online,
            "offline_cpus": topology.offline,
            "cores": topology.cores,
            "dies": topology.dies,
            "sockets": topology.sockets,
            "l1_domains": topology.l1_domains,
            "l2_domains": topology.l2_domains,
            "l3_domains": topology.l3_domains,
            "numa_nodes": self.nodes,
            "core_kinds": self.kinds,
            "memory": _memory_document(self.memory),
            "libc": self.libc,
            "preloads": self.preloads,
            "gpu_driver": self.gpu_driver,
            "unknown": self.unknown,
        }
        if self.details is not None:
            facts.update(self.details.as_json())
        whole = _Document(
            schema_version=SCHEMA_VERSION, machine=facts, limits=self.limits, budget=self.budget
        )
        return whole.as_json()


class _Document(Record):
    schema_version: int
    machine: dict[str, Any]
    limits: ProcessLimits
    budget: Budget


def _memory_document(memory: MachineMemory) -> dict[str, Any]:
    """Sizes and modes with the channels laid flat beside them."""
    document = memory.as_json()
    channels = document.pop("channels") or {}
    return {
        **document,
        "channels_populated": channels.pop("populated", None),
        "channels_possible": channels.pop("possible", None),
        **channels,
    }


def read_machine(source: Source | None = None, *, detail: bool = True) -> Machine:
    """The machine behind `source`, the one we run on by default.

    Without `detail` only what the policies of a launch ask for is read.
    """
    source = source or RootSource()
    if source.live and not sys.platform.startswith("linux"):
        from cputrain.machine.portable_machine import read_portable_machine

        return read_portable_machine(detail=detail)
    topology = read_topology(source, caches=detail)
    if not topology.online:
        raise SourceError(
            "the machine's root",
            "must hold /sys/devices/system/cpu or /proc/cpuinfo",
            found="neither",
            do="Give the folder that has sys/ and proc/ in it.",
        )
    identity = read_identity(source, full=detail)
    limits = read_limits(source, topology.online)
    memory, details = read_memory(source, None), None
    if detail:
        memory, details = _read_details(source, topology, memory)
    return Machine(
        system="linux",
        vendor=identity.vendor,
        family=identity.family,
        model=identity.model,
        model_name=identity.model_name,
        isa=identity.isa,
        virtual=identity.virtual,
        topology=topology,
        kinds=read_kinds(source, topology.online),
        nodes=read_nodes(source, topology.online),
        memory=memory,
        libc=read_libc(source),
        preloads=read_preloads(source),
        gpu_driver=read_gpu_driver(source),
        limits=limits,
        budget=make_budget(topology, limits, memory.total_bytes),
        unknown={},
        details=details,
    )


def _read_details(
    source: Source, topology: Topology, memory: MachineMemory
) -> tuple[MachineMemory, Details]:
    from cputrain.machine.accelerators import read_accelerators
    from cputrain.machine.channels import read_channels
    from cputrain.machine.frequency import read_frequency
    from cputrain.machine.opencl_drivers import read_opencl_drivers

    identity = read_identity(source)
    channels = read_channels(
        source,
        vendor=identity.vendor,
        family=identity.family,
        model=identity.model,
        model_name=identity.model_name,
        sockets=len(topology.sockets),
        virtual=identity.virtual,
    )
    return memory.replace(channels=channels), Details(
        frequency=read_frequency(source, topology.online),
        accelerators=read_accelerators(source),
        opencl_drivers=read_opencl_drivers(source),
    )
