"""Threads that compute side by side, each with a team of its own."""

from __future__ import annotations

import os

import pytest
import torch

from cputrain.split.execution import placement as seating
from cputrain.split.execution.executor import Executor
from cputrain.split.execution.placement import places


def test_each_computes_with_as_many_threads_as_it_has_cores():
    """After its first operators, too, and whatever the caller says of its own."""
    before = 2
    torch.set_num_threads(before)
    ((_, seats),) = places(before).items()
    crew = Executor(seats)

    def at_work():
        torch.ones(1 << 20).add_(1).sum()
        return torch.get_num_threads(), len(os.sched_getaffinity(0))

    for _ in range(2):
        found = crew.run([at_work] * before)
        assert found == [(1, len(cores[0])) for cores in seats]
        assert torch.get_num_threads() == before
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cores", "devices", "threads", "driving"),
    [
        (16, ("cuda", "cpu"), 14, [14]),
        (8, ("cpu", "cuda"), 6, [6]),
        (6, ("cuda", "cpu"), 5, [5]),
        (32, ("cuda:0", "cuda:1", "cpu"), 30, [30, 31]),
        (2, ("cuda", "cpu"), 1, [1]),
        (1, ("cuda", "cpu"), 1, [0]),
    ],
)
def test_the_cpu_beside_a_gpu_leaves_a_core_to_who_drives_it(
    monkeypatch, cores, devices, threads, driving
):
    """It has an even team, as MKL takes twice as long for few rows with 15 threads as with 14; any
    of them may move to any core."""
    monkeypatch.setattr(seating, "_cores", lambda: [(number,) for number in range(cores)])
    members, found = seating.seats_among([torch.device(one) for one in devices], None)
    assert members == [1] * len(devices)
    team = found.pop(devices.index("cpu"))
    assert len(team) == threads
    assert sorted(cpu for core in team for cpu in core) == list(range(cores))
    assert found == [((core,),) for core in driving]


def test_several_replicas_beside_a_gpu_have_cores_of_their_own(monkeypatch):
    monkeypatch.setattr(seating, "_cores", lambda: [(number,) for number in range(16)])
    members, found = seating.seats_among([torch.device("cuda"), torch.device("cpu")], 2)
    assert members == [1, 2]
    assert [[core[0] for core in team] for team in found] == [
        [14], list(range(7)), list(range(7, 14))
    ]  # fmt: skip
