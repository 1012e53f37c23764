"""Assign cores to jobs so that a job's cores share an L3 cache and a NUMA node if they can."""

from __future__ import annotations

from cputrain.machine import CoreKind, cores_within
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cputrain.machine import Cpus, Machine


class CoreDomain(Record):
    """Cores of one kind that share an L3 cache and a NUMA node."""

    cores: tuple[Cpus, ...]
    """Logical CPUs of each core."""

    node: int
    """Number of the NUMA node."""

    is_fast: bool = True
    """Whether these are no efficiency cores."""


def core_domains(machine: Machine) -> tuple[CoreDomain, ...]:
    """Return the cores that this process may use, in groups by locality; fast ones first."""
    node = {cpu: node.id for node in machine.nodes for cpu in node.cpus}
    cache = {cpu: domain.cpus[0] for domain in machine.topology.l3_domains for cpu in domain.cpus}
    frugal = {
        cpu for kind in machine.kinds if kind.kind is CoreKind.EFFICIENCY for cpu in kind.cpus
    }
    groups: dict[tuple[bool, int, int], list[Cpus]] = {}
    for core in cores_within(machine.topology, machine.budget.cpus):
        place = (core[0] in frugal, node.get(core[0], 0), cache.get(core[0], 0))
        groups.setdefault(place, []).append(core)
    return tuple(
        CoreDomain(cores=tuple(cores), node=node, is_fast=not is_frugal)
        for (is_frugal, node, _), cores in sorted(groups.items())
    )


class CoreAllocator:
    """Free and occupied cores.

    Args:
        groups: The cores by locality.
        num_cores: How many may compute at the same time: fewer than there are under a CPU quota.
    """

    def __init__(self, groups: Iterable[CoreDomain], num_cores: int) -> None:
        self._groups = tuple(groups)
        self._free = [list(group.cores) for group in self._groups]
        total = sum(len(group.cores) for group in self._groups)
        self.num_cores = min(num_cores, total)
        self._num_occupied = 0

    @property
    def num_free(self) -> int:
        """Number of cores that may be taken."""
        return self.num_cores - self._num_occupied

    def take(self, count: int) -> tuple[Cpus, ...] | None:
        """Occupy that many cores and return them; None if there are not enough.

        Cores of one group are preferred, of the group with the fewest free cores that has enough;
        then cores of one NUMA node.
        """
        if not 1 <= count <= self.num_free:
            return None
        chosen = self._in_one_group(count) or self._in_several(count)
        for index, core in chosen:
            self._free[index].remove(core)
        self._num_occupied += count
        return tuple(core for _, core in chosen)

    def release(self, cores: Sequence[Cpus]) -> None:
        """Make cores available again."""
        taken = set(cores)
        for free, group in zip(self._free, self._groups, strict=True):
            back = [core for core in group.cores if core in taken or core in free]
            free[:] = back
        self._num_occupied -= len(cores)

    def _in_one_group(self, count: int) -> list[tuple[int, Cpus]]:
        fitting = [
            (not self._groups[index].is_fast, len(free), index)
            for index, free in enumerate(self._free)
            if len(free) >= count
        ]
        if not fitting:
            return []
        _, _, index = min(fitting)
        return [(index, core) for core in _adjacent(self._free[index], count)]

    def _in_several(self, count: int) -> list[tuple[int, Cpus]]:
        """Return cores of the node with most free fast cores first, then of the other nodes."""
        free_of_node: dict[int, int] = {}
        for group, free in zip(self._groups, self._free, strict=True):
            free_of_node[group.node] = free_of_node.get(group.node, 0) + len(free)
        order = sorted(
            range(len(self._groups)),
            key=lambda index: (
                not self._groups[index].is_fast,
                -free_of_node[self._groups[index].node],
                self._groups[index].node,
                -len(self._free[index]),
            ),
        )
        return [(index, core) for index in order for core in self._free[index]][:count]


def _adjacent(free: Sequence[Cpus], count: int) -> Sequence[Cpus]:
    """Return the shortest run of free cores with that many, the first of several."""
    begin = min(
        range(len(free) - count + 1),
        key=lambda at: (free[at + count - 1][0] - free[at][0], at),
    )
    return free[begin : begin + count]
