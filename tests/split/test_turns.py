"""Shards that are more than the cores: how many run at a time, and who runs them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from cputrain.errors import PartsDiffer
from cputrain.split.balance.concurrency import FastestCount
from cputrain.split.execution.executor import Executor
from cputrain.split.execution.placement import places_on_any_core
from cputrain.split.sync.barrier import BarrierAborted, ReplicaBarrier

NUM_SHARDS = 7


@pytest.fixture(scope="module")
def executor() -> Executor:
    ((_, places),) = places_on_any_core(NUM_SHARDS).items()
    return Executor(places)


class Running:
    """Counts the jobs that run at a time, and the threads that run them."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.threads: set[int] = set()
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
            self.threads.add(threading.get_ident())

    def leave(self) -> None:
        with self._lock:
            self.now -= 1


def jobs_of(
    barrier: ReplicaBarrier, running: Running, work: Callable[[int], Any]
) -> list[Callable[[], Any]]:
    def job_of(number: int) -> Callable[[], Any]:
        def job() -> Any:
            barrier.begin_turn()
            running.enter()
            try:
                return work(number)
            except BaseException:
                barrier.abort()
                raise
            finally:
                running.leave()
                barrier.end_turn()

        return job

    return [job_of(number) for number in range(NUM_SHARDS)]


@pytest.mark.parametrize("num_turns", [1, 2, 3])
def test_a_thread_runs_one_shard_after_the_other(executor: Executor, num_turns: int) -> None:
    barrier, running = ReplicaBarrier(NUM_SHARDS, num_turns), Running()

    def work(number: int) -> int:
        time.sleep(0.002)
        return number**2

    jobs = jobs_of(barrier, running, work)
    results = executor.run_in_turns(jobs, barrier, num_turns)
    assert results == [number**2 for number in range(NUM_SHARDS)]
    assert running.most <= num_turns
    assert len(running.threads) <= num_turns


@pytest.mark.parametrize("num_turns", [1, 2, 3])
def test_others_run_where_one_waits(executor: Executor, num_turns: int) -> None:
    """Every shard comes to every rendezvous, and no more run at a time than there are turns."""
    barrier, running = ReplicaBarrier(NUM_SHARDS, num_turns), Running()
    num_combined = []

    def combine(values: list[int]) -> int:
        num_combined.append(len(values))
        return sum(values)

    def work(number: int) -> list[int]:
        sums = []
        for key in range(5):
            time.sleep(0.001)
            running.leave()
            sums.append(barrier.all_reduce(key, number, number * key, combine))
            running.enter()
        return sums

    expected = [key * sum(range(NUM_SHARDS)) for key in range(5)]
    for _ in range(3):
        jobs = jobs_of(barrier, running, work)
        assert executor.run_in_turns(jobs, barrier, num_turns) == [expected] * NUM_SHARDS
    assert running.most <= num_turns
    assert num_combined == [NUM_SHARDS] * 15


@pytest.mark.parametrize("at", ["before", "combine", "after"])
def test_an_error_ends_all_shards(executor: Executor, at: str) -> None:
    barrier, running = ReplicaBarrier(NUM_SHARDS, 2), Running()

    def combine(values: list[int]) -> int:
        if at == "combine":
            raise ValueError(at)
        return len(values)

    def work(number: int) -> None:
        if at == "before" and number == 3:
            raise ValueError(at)
        barrier.all_reduce("sum", number, number, combine)
        if at == "after" and number == 5:
            raise ValueError(at)
        barrier.all_reduce("never", number, number, combine)

    with pytest.raises(ValueError, match=at):
        executor.run_in_turns(jobs_of(barrier, running, work), barrier, 2)
    assert running.now == 0
    with pytest.raises(BarrierAborted):
        barrier.begin_turn()
    barrier = ReplicaBarrier(NUM_SHARDS, 2)  # the threads are as good as new
    jobs = jobs_of(barrier, running, lambda number: number)
    assert executor.run_in_turns(jobs, barrier, 2) == list(range(NUM_SHARDS))


def test_a_shard_that_leaves_without_a_rendezvous_is_named(executor: Executor) -> None:
    barrier, running = ReplicaBarrier(NUM_SHARDS, 2), Running()

    def work(number: int) -> None:
        if number != 4:
            barrier.all_gather("the loss", number, number)
        barrier.leave(number)

    with pytest.raises(PartsDiffer, match="the loss"):
        executor.run_in_turns(jobs_of(barrier, running, work), barrier, 2)


@pytest.mark.parametrize(
    ("seconds", "fastest"),
    [
        ({8: 1.0, 4: 1.0, 2: 0.5, 1: 0.1}, 8),
        ({8: 1.0, 4: 0.8, 2: 0.7, 1: 0.9}, 2),
        ({8: 1.0, 4: 0.8, 2: 0.6, 1: 0.3}, 1),
        ({6: 1.0, 3: 0.5, 1: 0.6}, 3),
        ({1: 1.0}, 1),
    ],
)
def test_the_number_is_halved_while_that_is_faster(seconds: dict[int, float], fastest: int) -> None:
    count = FastestCount(max(seconds))
    for step in range(60):
        slower = 1.0 + 0.2 * (step % 3)  # but for one step of three
        count.record(count.count, seconds[count.count] * slower)
    assert count.count == fastest


def test_a_number_that_is_clearly_slower_is_given_up_at_once() -> None:
    count = FastestCount(4)
    while count.count == 4:
        count.record(4, 1.0)
    count.record(2, 1.6)
    assert count.count == 4
