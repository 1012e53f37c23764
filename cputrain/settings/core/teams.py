"""Divide cores among replicas, and propose numbers of replicas to try."""

from __future__ import annotations

from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.machine import Cpus, Machine


def ordered(machine: Machine, cores: Sequence[Cpus]) -> list[Cpus]:
    """Sort cores so that those of a NUMA node, and in it those of an L3 cache, are contiguous."""
    nodes = _place_of([node.cpus for node in machine.nodes])
    caches = _place_of([domain.cpus for domain in machine.topology.l3_domains])
    return sorted(cores, key=lambda core: (nodes.get(core[0], 0), caches.get(core[0], 0), core[0]))


def parts(cores: Sequence[Cpus], count: int) -> list[tuple[Cpus, ...]]:
    """Divide cores into `count` contiguous parts of sizes that differ by one at most."""
    edges = [round(number * len(cores) / count) for number in range(count + 1)]
    return [tuple(cores[a:b]) for a, b in pairwise(edges)]


def counts(machine: Machine, cores: Sequence[Cpus]) -> list[int]:
    """Return numbers of replicas to try, the most promising first.

    One replica for each L3 cache, and one for each NUMA node, so that a replica's data stay there;
    then replicas of 4, 8, 2, 16 and 32 cores, or of 1 and 2 if there are at most four cores.
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
