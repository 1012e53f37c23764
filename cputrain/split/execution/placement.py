"""The cores of each replica."""

from __future__ import annotations

import os
from functools import cache

import torch

from cputrain.settings.core.teams import counts, ordered, parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.machine import Cpus, Machine
    from cputrain.split.dispatcher import Places

MAX_ODD_THREADS = 5
"""Number of threads up to which odd thread teams are used."""


def places(count: int | None) -> dict[int, Places]:
    """Return the cores of each replica, by number: for `count`, or numbers worth trying."""
    cores = _cores()
    if count is None:
        return {
            num_replicas: parts(cores, num_replicas) for num_replicas in counts(_machine(), cores)
        }
    if count == 1:
        return {}
    return {count: _divide_cores(cores, count)}


def places_on_any_core(count: int) -> dict[int, Places]:
    """Return the place of one thread for each of `count` replicas: any of the cores.

    So the result depends on nothing but `count`, and cores compute whichever shard comes next.
    """
    every = tuple(cpu for core in _shared_cores() for cpu in core)
    return {count: [(every,)] * count}


@cache
def num_cores() -> int:
    """Return how many cores this process has for its replicas."""
    return len(_shared_cores())


def seats_among(devices: Sequence[torch.device], count: int | None) -> tuple[list[int], Places]:
    """Return the number of replicas on each device, and the cores of each replica.

    The CPU has `count` replicas, by default one: each computes a gradient of every parameter, which
    took three of them on 16 cores longer than their few samples. Each other device has one replica,
    whose thread launches its kernels from a core of its own where there is more than one.

    A single CPU replica may use any core: an OpenMP thread pinned to the core of a kernel-launching
    thread would delay its whole team at each operator, unless it can migrate.
    """
    cores = _cores()
    num_launchers = sum(device.type != "cpu" for device in devices)
    count = count or 1
    num_compute_cores = _even(max(1, len(cores) - num_launchers))
    compute_cores, launcher_cores = cores[:num_compute_cores], cores[num_compute_cores:]
    unused_launcher_cores = iter(launcher_cores)
    if count == 1:
        compute_cores = [
            *compute_cores[:-1],
            tuple(cpu for core in (compute_cores[-1], *launcher_cores) for cpu in core),
        ]
    replicas_per_device: list[int] = []
    replica_cores: Places = []
    for device in devices:
        replicas_per_device.append(count if device.type == "cpu" else 1)
        replica_cores += (
            _divide_cores(compute_cores, count)
            if device.type == "cpu"
            else [(next(unused_launcher_cores, cores[-1]),)]
        )
    if len(replica_cores) == 1:  # for the first comparison, which needs a second replica
        replica_cores.append(tuple(compute_cores))
    return replicas_per_device, replica_cores


def _even(threads: int) -> int:
    """Return an even number of threads, at most one fewer.

    With 7, 9 or 15 threads MKL takes twice as long for a product with few rows as with 6, 8 or 14.
    """
    return threads - 1 if threads > MAX_ODD_THREADS and threads % 2 else threads


def _cores() -> list[Cpus]:
    """Return the cores that one operator uses, neighbours next to each other."""
    return _shared_cores()[: torch.get_num_threads()]


def _shared_cores() -> list[Cpus]:
    """Return the cores of this process, neighbours next to each other."""
    from cputrain.machine import read_rank
    from cputrain.plan import Request
    from cputrain.settings.core.cores import share_of

    machine = _machine()
    request = Request(environment=dict(os.environ), rank=read_rank(os.environ))
    return ordered(machine, share_of(machine, request).fast)


def _machine() -> Machine:
    from cputrain.machine import read_machine

    return read_machine()


def _divide_cores(cores: list[Cpus], count: int) -> Places:
    if count <= len(cores):
        return parts(cores, count)
    # more replicas than cores: several share a core
    return [(cores[number % len(cores)],) for number in range(count)]
