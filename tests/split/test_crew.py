"""Threads that compute side by side, each with a team of its own."""

from __future__ import annotations

import os

import torch

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

    try:
        for _ in range(2):
            found = crew.run([at_work] * before)
            assert found == [(1, len(cores[0])) for cores in seats]
            assert torch.get_num_threads() == before
            torch.set_num_threads(before)
    finally:
        crew.end()
