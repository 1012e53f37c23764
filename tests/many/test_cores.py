"""Which cores jobs get, and how many."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cputrain.machine import Cpus, Machine
from cputrain.many.core_allocator import CoreAllocator, CoreDomain, core_domains
from cputrain.many.cores_per_job import CoresPerJob, JobRate
from tests.plan.machines import machines


@given(machines(), st.randoms(use_true_random=False))
def test_no_core_is_taken_twice(machine: Machine, rng: random.Random) -> None:
    groups = core_domains(machine)
    cores = {core for group in groups for core in group.cores}
    allocator = CoreAllocator(groups, machine.budget.physical_cores)
    taken: list[tuple[Cpus, ...]] = []
    for _ in range(30):
        if taken and rng.random() < 0.4:
            allocator.release(taken.pop(rng.randrange(len(taken))))
            continue
        count = rng.randint(1, 4)
        chosen = allocator.take(count)
        if chosen is None:
            assert count > allocator.num_free
            continue
        assert len(chosen) == count
        taken.append(chosen)
        busy = Counter(core for some in taken for core in some)
        assert set(busy) <= cores
        assert max(busy.values()) == 1
        assert sum(busy.values()) <= machine.budget.physical_cores
    for chosen in taken:
        allocator.release(chosen)
    assert allocator.num_free == allocator.num_cores


def groups_of(*sizes: int, per_node: int = 1, frugal: int = 0) -> list[CoreDomain]:
    groups, cpu = [], 0
    for number, size in enumerate([*sizes, *([frugal] if frugal else [])]):
        cores = tuple((cpu + core,) for core in range(size))
        groups.append(CoreDomain(cores=cores, node=number // per_node, is_fast=number < len(sizes)))
        cpu += size
    return groups


def test_cores_of_a_job_share_a_cache_where_they_fit() -> None:
    allocator = CoreAllocator(groups_of(4, 4, 4), 12)
    assert allocator.take(3) == ((0,), (1,), (2,))
    assert allocator.take(2) == ((4,), (5,))  # not one of the first cache and one of the second
    assert allocator.take(1) == ((3,),)  # the cache with the fewest free cores
    assert allocator.take(2) == ((6,), (7,))


def test_cores_that_share_no_cache_share_a_node() -> None:
    allocator = CoreAllocator(groups_of(4, 4, 4, 4, per_node=2), 16)
    allocator.take(1)
    chosen = allocator.take(6)
    assert chosen is not None
    assert {cpu // 8 for (cpu,) in chosen} == {1}


def test_efficiency_cores_come_last() -> None:
    allocator = CoreAllocator(groups_of(2, frugal=2), 4)
    assert [allocator.take(1) for _ in range(5)] == [((0,),), ((1,),), ((2,),), ((3,),), None]


def test_a_quota_limits_how_many_are_taken() -> None:
    allocator = CoreAllocator(groups_of(8), 3)
    assert allocator.take(2) is not None
    assert allocator.take(2) is None
    assert allocator.take(1) is not None
    assert allocator.num_free == 0


def run_queue(num_cores: int, num_jobs: int, seconds: dict[int, float]) -> Counter[int]:
    """Simulate a queue whose jobs take these seconds by number of cores; count the numbers."""
    decision, free, waiting, now = CoresPerJob(num_cores), num_cores, num_jobs, 0.0
    running: list[tuple[float, int]] = []
    counts: Counter[int] = Counter()
    speeds = {cores: 1000 / time_s for cores, time_s in seconds.items()}
    while waiting or running:
        while waiting:
            rates = [JobRate(cores=cores, steps_per_s=speeds[cores]) for _, cores in running]
            count = decision.next(waiting, free, rates)
            if count > free:
                assert running, "nothing runs, and nothing is started"
                break
            decision.started(count)
            counts[count] += 1
            running.append((now + seconds[count], count))
            free, waiting = free - count, waiting - 1
        now, cores = min(running)
        running.remove((now, cores))
        free += cores
        decision.add(JobRate(cores=cores, steps_per_s=speeds[cores]))
    return counts


def scaling(num_cores: int, efficiency: float) -> dict[int, float]:
    """Seconds of a job by cores, if each doubling has this efficiency."""
    seconds = {}
    for cores in range(1, num_cores + 1):
        seconds[cores] = 100.0 / cores / efficiency ** (cores.bit_length() - 1)
    return seconds


@pytest.mark.parametrize("num_cores", [1, 2, 4, 16, 64])
@pytest.mark.parametrize("jobs_per_core", [1, 3, 20])
def test_jobs_that_scale_badly_get_one_core_each(num_cores: int, jobs_per_core: int) -> None:
    num_jobs = num_cores * jobs_per_core
    counts = run_queue(num_cores, num_jobs, scaling(num_cores, 0.6))
    assert sum(counts.values()) == num_jobs
    tried = sum(number for cores, number in counts.items() if cores > 1)
    assert tried <= max(4, num_jobs // 8)


def test_jobs_that_contend_for_memory_get_more_cores() -> None:
    seconds = scaling(16, 1.0) | {1: 250.0, 2: 60.0, 4: 25.0, 8: 15.0}
    counts = run_queue(16, 400, seconds)
    assert counts.most_common(1)[0][0] == 4


def test_few_jobs_get_all_cores() -> None:
    assert CoresPerJob(16).next(num_waiting=4, num_free=16) == 4
    assert CoresPerJob(16).next(num_waiting=40, num_free=16) == 2  # a trial
    assert CoresPerJob(2).next(num_waiting=8, num_free=2) == 1
    assert CoresPerJob(2).next(num_waiting=1, num_free=2) == 2


def test_the_last_jobs_get_the_idle_cores_if_steps_are_long() -> None:
    for step_s, expected in ((0.0005, 1), (0.013, 4), (0.5, 8)):
        decision = CoresPerJob(8)
        decision.add(JobRate(cores=1, steps_per_s=1 / step_s))
        assert decision.next(num_waiting=1, num_free=8) == expected


def test_more_cores_that_were_slower_are_not_used_again() -> None:
    decision = CoresPerJob(8)
    decision.add(JobRate(cores=1, steps_per_s=2.0))
    decision.add(JobRate(cores=4, steps_per_s=1.0))
    assert decision.next(num_waiting=1, num_free=8) == 1


def test_steps_and_whole_jobs_are_not_compared() -> None:
    decision = CoresPerJob(8)
    decision.add(JobRate(cores=2, steps_per_s=0.001, has_steps=False))
    decision.add(JobRate(cores=1, steps_per_s=10.0))
    assert decision.next(num_waiting=8, num_free=8) == 1
