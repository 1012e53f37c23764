"""All facts about the machine as one value: hardware, limits of this process, and the budget."""

from __future__ import annotations

import sys

from cputrain.counting import counted
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
    """Facts for reports only; a launch skips them to start quickly."""

    frequency: Frequency
    """Clock frequencies and the governor."""

    accelerators: tuple[Accelerator, ...]
    """GPUs and other accelerators."""

    opencl_drivers: tuple[OpenCLDriver, ...]
    """Installed OpenCL drivers."""


class Machine(Record):
    """Hardware facts, limits of this process, and the budget that follows from them."""

    system: str
    """"linux", "darwin", "win32": sys.platform of the machine described."""

    vendor: str | None
    """"AuthenticAMD", "GenuineIntel", "ARM", "IBM", …"""

    family: int | None
    """x86 family."""

    model: int | None
    """x86 model."""

    model_name: str | None
    """Marketing name of the CPU."""

    isa: tuple[str, ...]
    """Instruction sets that matter for training."""

    virtual: bool
    """Whether a hypervisor is detected."""

    topology: Topology
    """Logical CPUs with their cores, dies, sockets and caches."""

    kinds: tuple[CoreGroup, ...]
    """Performance and efficiency cores; one group on most machines."""

    nodes: tuple[Node, ...]
    """NUMA nodes."""

    memory: MachineMemory
    """Main memory: sizes, huge pages and channels."""

    libc: tuple[int, int] | None
    """Version of glibc; None for another C library or if unknown."""

    preloads: dict[str, str]
    """Paths of installed allocators that can be preloaded, by name."""

    gpu_driver: str = ""
    """Compute driver of a GPU that is loaded; empty if there is none."""

    limits: ProcessLimits
    """CPU and memory limits of this process."""

    budget: Budget
    """CPUs, cores and memory that remain once every limit is applied."""

    unknown: dict[str, str]
    """Reason for each fact that is unknown, by the fact's name."""

    details: Details | None = None
    """Facts for reports; None for a launch."""

    def fingerprint(self) -> str:
        """Return a readable description of the hardware that cached results are valid for."""
        memory = self.memory.total_bytes or 0
        return (
            f"{self.model_name or self.vendor or 'unknown CPU'}, {len(self.topology.cores)} cores, "
            f"{len(self.topology.online)} CPUs, {len(self.topology.sockets)} sockets, "
            f"{len(self.nodes)} nodes, {memory / 2**30:.0f} GiB"
        )

    def summary(self) -> str:
        """Return the hardware in a line for readers."""
        memory = self.memory.total_bytes or 0
        parts = (
            counted(len(self.topology.cores), "core"),
            counted(len(self.topology.online), "logical CPU"),
            counted(len(self.topology.sockets), "socket"),
            counted(len(self.nodes), "NUMA node"),
            f"{memory / 2**30:.0f} GiB",
        )
        return ", ".join([self.model_name or self.vendor or "unknown CPU", *parts])

    def document(self) -> dict[str, Any]:
        """Return the JSON document of `cputrain info --json`."""
        topology = self.topology
        machine: dict[str, Any] = {
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
            machine.update(self.details.as_json())
        report = _Document(
            schema_version=SCHEMA_VERSION, machine=machine, limits=self.limits, budget=self.budget
        )
        return report.as_json()


class _Document(Record):
    schema_version: int
    machine: dict[str, Any]
    limits: ProcessLimits
    budget: Budget


def _memory_document(memory: MachineMemory) -> dict[str, Any]:
    """Return the memory's JSON object with the fields of its channels merged into it."""
    document = memory.as_json()
    channels = document.pop("channels") or {}
    return {
        **document,
        "channels_populated": channels.pop("populated", None),
        "channels_possible": channels.pop("possible", None),
        **channels,
    }


def read_machine(source: Source | None = None, *, detail: bool = True) -> Machine:
    """Read the machine behind `source`.

    Args:
        source: The system to read; by default the running machine.
        detail: Whether to read the facts that only reports need.

    Raises:
        SourceError: `source` has no CPUs.
    """
    source = source or RootSource()
    if source.live and not sys.platform.startswith("linux"):
        from cputrain.machine.portable_machine import read_portable_machine

        return read_portable_machine(detail=detail)
    topology = read_topology(source, caches=detail)
    if not topology.online:
        raise SourceError(
            "the machine's root",
            "must contain /sys/devices/system/cpu or /proc/cpuinfo",
            found="neither",
            do="Give the folder that contains sys/ and proc/.",
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
