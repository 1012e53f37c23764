"""NUMA nodes: their CPUs, memory sizes and distances."""

from __future__ import annotations

from cputrain.machine.source import text
from cputrain.machine.topology import Cpus, read_cpus
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

NODE_FOLDERS = ("/sys/devices/system/node", "/sys/bus/node/devices")
GPU_FOLDER = "/proc/driver/nvidia/gpus"


class Node(Record):
    """A NUMA node: its memory and its CPUs."""

    id: int
    """Node number of the kernel; numbers may have gaps."""

    cpus: Cpus
    """Online CPUs of the node; none for device or CXL memory."""

    memory_bytes: int | None
    """Memory of the node in bytes; None if unknown."""

    distances: tuple[int, ...]
    """Distance to each node in the order of ids, 10 to itself; empty if unknown."""


def read_nodes(source: Source, online: Cpus) -> tuple[Node, ...]:
    """Return all nodes ordered by id; one node with all CPUs and memory without NUMA support."""
    for folder in NODE_FOLDERS:
        nodes = _read_folder(source, folder, frozenset(online))
        if nodes:
            return nodes
    total = meminfo(source).get("MemTotal")
    return (Node(id=0, cpus=online, memory_bytes=total, distances=()),)


def _read_folder(source: Source, folder: str, online: frozenset[int]) -> tuple[Node, ...]:
    ids = [
        int(name[4:])
        for name in source.names(folder)
        if name.startswith("node") and name[4:].isdecimal()
    ]
    # The file lists nodes, not CPUs, in the same notation.
    online_nodes = read_cpus(source, "", f"{folder}/online")
    gpu_nodes = _power_gpu_nodes(source) if ids else frozenset()
    nodes: list[Node] = []
    assigned_cpus: set[int] = set()
    for node in (_read_node(source, folder, index, online) for index in sorted(ids)):
        if node.id in gpu_nodes or (online_nodes and node.id not in online_nodes):
            continue
        # Some firmware assigns CPUs to two nodes; the first node keeps them.
        if assigned_cpus.isdisjoint(node.cpus) or _is_emulated(source):
            nodes.append(node)
            assigned_cpus.update(node.cpus)
    return tuple(nodes)


def _read_node(source: Source, folder: str, node: int, online: frozenset[int]) -> Node:
    node_folder = f"{folder}/node{node}"
    cpus = read_cpus(source, f"{node_folder}/cpumap", f"{node_folder}/cpulist")
    distances = (text(source, f"{node_folder}/distance") or "").split()
    return Node(
        id=node,
        cpus=tuple(cpu for cpu in cpus or () if cpu in online),
        memory_bytes=meminfo(source, f"{node_folder}/meminfo").get("MemTotal"),
        distances=tuple(int(word) for word in distances if word.isdecimal()),
    )


def _is_emulated(source: Source) -> bool:
    """Return whether the kernel emulates nodes (numa=fake), which then share CPUs."""
    return "numa=fake" in (text(source, "/proc/cmdline") or "")


def _power_gpu_nodes(source: Source) -> frozenset[int]:
    """Return the nodes of GPU memory on POWER, which CPU training must not use.

    On other machines, such as Grace, GPU memory counts like any node without CPUs.
    """
    nodes = set()
    for gpu in source.names(GPU_FOLDER):
        status = text(source, f"{GPU_FOLDER}/{gpu}/numa_status") or ""
        value = status.partition("Node:")[2].split()[:1]
        if value and value[0].isdecimal():
            nodes.add(int(value[0]))
    if nodes and "POWER" in (text(source, "/proc/cpuinfo", 1 << 12) or ""):
        return frozenset(nodes)
    return frozenset()


def meminfo(source: Source, path: str = "/proc/meminfo") -> dict[str, int]:
    """Return a meminfo file's sizes in bytes; a node's file prefixes names with "Node 0"."""
    sizes = {}
    for line in (text(source, path) or "").splitlines():
        name, colon, value = line.partition(":")
        words = value.split()
        if colon and words and words[0].isdecimal():
            scale = 1024 if words[1:] == ["kB"] else 1
            sizes[name.split()[-1]] = int(words[0]) * scale
    return sizes
