"""Teams of cores for replicas: on machines that were captured, and on machines that never were."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputrain.machine import Machine, read_machine
from cputrain.machine.capture import read_capture
from cputrain.plan import Request
from cputrain.settings.core.cores import share_of
from cputrain.settings.core.teams import counts, ordered, parts
from tests.plan.machines import machines

CAPTURED = sorted((Path(__file__).parents[1] / "machines").glob("*.json"))


def captured(name: str) -> Machine:
    path = next(path for path in CAPTURED if path.stem == name)
    return read_machine(read_capture(str(path)))


@given(machine=machines(), count=st.integers(1, 9))
def test_each_core_is_in_one_team_and_teams_are_even(machine: Machine, count: int) -> None:
    cores = ordered(machine, share_of(machine, Request()).fast)
    count = min(count, len(cores))
    teams = parts(cores, count)
    assert sorted(core for team in teams for core in team) == sorted(cores)
    sizes = [len(team) for team in teams]
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= 1


@given(machine=machines())
def test_numbers_worth_trying_are_few_and_can_be(machine: Machine) -> None:
    cores = ordered(machine, share_of(machine, Request()).fast)
    found = counts(machine, cores)
    assert len(found) == len(set(found)) <= 7
    assert all(2 <= count <= len(cores) for count in found)


@pytest.mark.parametrize("path", CAPTURED, ids=lambda path: path.stem)
def test_a_team_for_each_cache_does_not_cross_one(path: Path) -> None:
    machine = captured(path.stem)
    cores = ordered(machine, share_of(machine, Request()).fast)
    held = {cpu for core in cores for cpu in core}
    caches = [
        set(domain.cpus) & held
        for domain in machine.topology.l3_domains
        if not held.isdisjoint(domain.cpus)
    ]
    if len(caches) < 2 or len({len(cache) for cache in caches}) > 1:
        return  # one cache, or uneven ones: no even teams keep within them
    assert len(caches) in counts(machine, cores)
    for team in parts(cores, len(caches)):
        assert {cpu for core in team for cpu in core} in caches


def test_the_first_thing_to_try_is_a_team_for_each_cache() -> None:
    machine = captured("x86_64-epyc_7451")
    cores = ordered(machine, share_of(machine, Request()).fast)
    caches = len(machine.topology.l3_domains)
    assert caches > 1
    assert counts(machine, cores)[0] == caches
