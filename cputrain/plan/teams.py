"""Teams of cores for replicas: which cores each has, and how many are worth a thought."""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.machine import Cpus, Machine


def ordered(machine: Machine, cores: Sequence[Cpus]) -> list[Cpus]:
    """The cores, those that share a NUMA node and within it a cache beside one another."""
    nodes = _place_of([node.cpus for node in machine.nodes])
    caches = _place_of([domain.cpus for domain in machine.topology.l3_domains])
    return sorted(cores, key=lambda core: (nodes.get(core[0], 0), caches.get(core[0], 0), core[0]))


def parts(cores: Sequence[Cpus], count: int) -> list[tuple[Cpus, ...]]:
    """So many parts of them, as even as can be, each of neighbours."""
    edges = [round(number * len(cores) / count) for number in range(count + 1)]
    return [tuple(cores[a:b]) for a, b in pairwise(edges)]


def counts(machine: Machine, cores: Sequence[Cpus]) -> list[int]:
    """Numbers of replicas that are worth trying, the most promising first.

    One for each cache that cores share and for each NUMA node, as what a replica works on then
    stays there; and parts of 4, 8, 2, 16 and 32 cores, and of one where there are few.
    """
    held = {cpu for core in cores for cpu in core}
    domains = [domain.cpus for domain in machine.topology.l3_domains]
    nodes = [node.cpus for node in machine.nodes]
    each = [sum(not held.isdisjoint(cpus) for cpus in group) for group in (domains, nodes)]
    sizes = (4, 8, 2, 16, 32) if len(cores) > 4 else (1, 2)
    each += [len(cores) // size for size in sizes]
    return [count for count in dict.fromkeys(each) if 2 <= count <= len(cores)]


def _place_of(groups: Sequence[Cpus]) -> dict[int, int]:
    return {cpu: number for number, cpus in enumerate(groups) for cpu in cpus}
