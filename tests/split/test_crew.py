"""Threads that compute side by side, each with a team of its own."""

from __future__ import annotations

import os

import pytest
import torch

from cputrain.split import seats as seating
from cputrain.split.crew import Crew
from cputrain.split.seats import places


def test_each_computes_with_as_many_threads_as_it_has_cores():
    """After its first operators, too, and whatever the caller says of its own."""
    before = 2
    torch.set_num_threads(before)
    ((_, seats),) = places(before).items()
    crew = Crew(seats)

    def at_work():
        torch.ones(1 << 20).add_(1).sum()
        return torch.get_num_threads(), len(os.sched_getaffinity(0))

    for _ in range(2):
        found = crew.run([at_work] * before)
        assert found == [(1, len(cores[0])) for cores in seats]
        assert torch.get_num_threads() == before
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cores", "devices", "teams"),
    [
        (16, ("cuda", "cpu"), [[14], range(14)]),
        (8, ("cpu", "cuda"), [range(6), [6]]),
        (6, ("cuda", "cpu"), [[5], range(5)]),
        (32, ("cuda:0", "cuda:1", "cpu"), [[30], [31], range(30)]),
        (2, ("cuda", "cpu"), [[1], [0]]),
        (1, ("cuda", "cpu"), [[0], [0]]),
    ],
)
def test_the_cpu_beside_a_gpu_leaves_it_a_core_and_has_an_even_team(
    monkeypatch, cores, devices, teams
):
    """MKL takes twice as long for a product of few rows with 15 threads as with 14."""
    monkeypatch.setattr(seating, "_cores", lambda: [(number,) for number in range(cores)])
    members, found = seating.seats_among([torch.device(one) for one in devices], None)
    assert members == [1] * len(devices)
    assert found == [tuple((number,) for number in team) for team in teams]
