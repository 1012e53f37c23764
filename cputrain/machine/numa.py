"""NUMA nodes: which CPUs sit beside which memory, and how far apart the nodes are."""

from __future__ import annotations

from cputrain.machine.source import text
from cputrain.machine.topology import Cpus, read_cpus_of
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

NODE_FOLDER = "/sys/devices/system/node"


class Node(Record):
    """A memory node and the CPUs beside it."""

    id: int
    """The kernel's number for it; numbers may have gaps."""

    cpus: Cpus
    """The online CPUs beside this memory; none for memory that only a device or CXL brings."""

    memory_bytes: int | None
    """What it holds; None where it is not told."""

    distances: tuple[int, ...]
    """To each node in the order of ids, 10 for itself; empty where it is not told."""


def read_nodes(source: Source, online: Cpus) -> tuple[Node, ...]:
    """Every node in the order of ids; a kernel without NUMA has one node with everything."""
    ids = sorted(
        int(name[4:])
        for name in source.names(NODE_FOLDER)
        if name.startswith("node") and name[4:].isdigit()
    )
    if not ids:
        total = meminfo(source).get("MemTotal")
        return (Node(id=0, cpus=online, memory_bytes=total, distances=()),)
    return tuple(_read_node(source, node, frozenset(online)) for node in ids)


def _read_node(source: Source, node: int, online: frozenset[int]) -> Node:
    folder = f"{NODE_FOLDER}/node{node}"
    cpus = read_cpus_of(source, f"{folder}/cpulist", f"{folder}/cpumap")
    distances = (text(source, f"{folder}/distance") or "").split()
    return Node(
        id=node,
        cpus=tuple(cpu for cpu in cpus or () if cpu in online),
        memory_bytes=meminfo(source, f"{folder}/meminfo").get("MemTotal"),
        distances=tuple(int(word) for word in distances if word.isdigit()),
    )


def meminfo(source: Source, path: str = "/proc/meminfo") -> dict[str, int]:
    """The sizes of a meminfo file in bytes; a node's file puts "Node 0" before each name."""
    found = {}
    for line in (text(source, path) or "").splitlines():
        name, colon, value = line.partition(":")
        words = value.split()
        if colon and words and words[0].isdigit():
            scale = 1024 if words[1:] == ["kB"] else 1
            found[name.split()[-1]] = int(words[0]) * scale
    return found
