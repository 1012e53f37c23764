"""The cores of each replica."""

from __future__ import annotations

import os

import torch

from cputrain.plan.teams import counts, ordered, parts

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.machine import Cpus, Machine
    from cputrain.split.dispatcher import Places

ODD = 5
"""Cores up to which one more is more, even or odd."""


def places(count: int | None) -> dict[int, Places]:
    """The cores of each replica, for each number of replicas: that one, or those worth trying."""
    cores = _cores()
    if count is None:
        return {one: parts(cores, one) for one in counts(_machine(), cores)}
    if count == 1:
        return {}
    return {count: _parts(cores, count)}


def seats_among(devices: Sequence[torch.device], count: int | None) -> tuple[list[int], Places]:
    """How many members each device has, and the cores of each member.

    The CPU has so many, or one: each computes a gradient of every parameter, which three of them on
    16 cores took longer for than for their few samples. Each other device has one, which drives it
    from a core of its own where there is more than one.

    A single one on the CPU may be on any core: one of its threads that shares a core with whoever
    asks a GPU for something makes all of them wait at each operator, unless it can move.
    """
    cores = _cores()
    drivers = sum(device.type != "cpu" for device in devices)
    count = count or 1
    size = _even(max(1, len(cores) - drivers))
    free, rest = cores[:size], cores[size:]
    driving = iter(rest)
    if count == 1:
        free = [*free[:-1], tuple(cpu for core in (free[-1], *rest) for cpu in core)]
    members: list[int] = []
    seats: Places = []
    for device in devices:
        members.append(count if device.type == "cpu" else 1)
        seats += _parts(free, count) if device.type == "cpu" else [(next(driving, cores[-1]),)]
    if len(seats) == 1:  # for the first comparison, beside where the model is
        seats.append(tuple(free))
    return members, seats


def _even(threads: int) -> int:
    """As many or one less: with 7, 9 or 15 threads MKL takes twice as long for a product of few
    rows as with 6, 8 or 14."""
    return threads - 1 if threads > ODD and threads % 2 else threads


def _cores() -> list[Cpus]:
    """Those that one operator uses, neighbours beside one another."""
    from cputrain.machine import read_rank
    from cputrain.plan import Request
    from cputrain.plan.cores import share_of

    machine = _machine()
    request = Request(environment=dict(os.environ), rank=read_rank(os.environ))
    return ordered(machine, share_of(machine, request).fast)[: torch.get_num_threads()]


def _machine() -> Machine:
    from cputrain.machine import read_machine

    return read_machine()


def _parts(cores: list[Cpus], count: int) -> Places:
    if count <= len(cores):
        return parts(cores, count)
    # more replicas than cores: several on one
    return [(cores[number % len(cores)],) for number in range(count)]
