"""The prefetch thread: its order, its errors, its end, and the trial that decides on it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import TensorDataset

from cputrain.data import DataLoader, prefetch
from cputrain.data.prefetch import BatchThread, PrefetchTrial
from cputrain.data.statistics import Statistics


@pytest.fixture(autouse=True)
def leaves_no_thread() -> Iterator[None]:
    before = threading.active_count()
    yield
    deadline = time.monotonic() + 10
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() == before


def double(task: int) -> int:
    return task * 2


def test_everything_comes_in_order() -> None:
    thread = BatchThread(double)
    for task in range(50):
        thread.put(task)
    assert len(thread) == 50
    assert [thread.get() for _ in range(50)] == [(task, 2 * task) for task in range(50)]
    assert len(thread) == 0


def test_what_is_raised_is_raised_where_it_is_waited_for() -> None:
    def make(task: int) -> int:
        if task == 1:
            raise ValueError("no batch")
        return task

    thread = BatchThread(make)
    for task in range(3):
        thread.put(task)
    assert thread.get() == (0, 0)
    with pytest.raises(ValueError, match="no batch"):
        thread.get()
    assert thread.get() == (2, 2)


def test_forgotten_it_ends() -> None:
    thread = BatchThread(double)
    thread.put(1)
    del thread


def test_a_forked_process_makes_what_the_thread_was_to_make() -> None:
    thread = BatchThread(double)
    for task in range(3):
        thread.put(task)
    child = os.fork()
    if not child:
        os._exit(0 if [thread.get()[1] for _ in range(3)] == [0, 2, 4] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert thread.get() == (0, 0)


def test_the_thread_computes_alone_and_the_script_as_before() -> None:
    threads = torch.get_num_threads()
    thread = BatchThread(lambda _: torch.get_num_threads())
    thread.put(0)
    assert thread.get() == (0, 1)
    assert torch.get_num_threads() == threads


def run_trial(alone_s: float, prefetching_s: float, batch_s: float) -> PrefetchTrial:
    """Return a trial after steps of the given lengths."""
    trial, now = PrefetchTrial(Statistics()), 0.0
    for _ in range(100):
        if trial.is_over:
            break
        now += prefetching_s if trial.is_prefetching else alone_s
        trial.step(now - batch_s, now)
    return trial


@pytest.mark.parametrize(
    ("alone_s", "prefetching_s", "batch_s", "expected"),
    [
        (0.010, 0.006, 0.004, True),
        (0.010, 0.0099, 0.004, False),  # too little to be more than chance
        (0.010, 0.020, 0.004, False),
        (0.010, 0.001, 0.0001, False),  # never tried: it takes too little to make
    ],
)
def test_the_median_step_decides(
    alone_s: float, prefetching_s: float, batch_s: float, expected: bool
) -> None:
    trial = run_trial(alone_s, prefetching_s, batch_s)
    assert trial.is_over
    assert trial.is_prefetching is expected
    notes = trial._loader_statistics.notes
    assert len(notes) == (batch_s >= prefetch.MIN_BATCH_S)


@pytest.mark.parametrize("wins", [True, False])
def test_a_loader_hands_out_the_same_batches_either_way(
    monkeypatch: pytest.MonkeyPatch, wins: bool
) -> None:
    monkeypatch.setattr(prefetch, "MIN_BATCH_S", 0.0)
    decide = PrefetchTrial._decide

    def decided(self: PrefetchTrial) -> None:
        if self.is_prefetching:
            self._step_times_s = {wins: [1.0], not wins: [2.0]}
        decide(self)

    monkeypatch.setattr(PrefetchTrial, "_decide", decided)
    data = TensorDataset(torch.arange(200.0).view(100, 2), torch.arange(100))
    torch.manual_seed(1)
    expected = [batch[1].tolist() for batch in torch.utils.data.DataLoader(data, 3, shuffle=True)]
    torch.manual_seed(1)
    loader = DataLoader(data, 3, shuffle=True, num_workers=1)
    assert [batch[1].tolist() for batch in loader] == expected
    (note,) = loader.stats().notes
    assert ("does not prefetch" in note) is not wins


def test_a_loader_left_early_is_let_go_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "MIN_BATCH_S", 0.0)
    data: Any = TensorDataset(torch.arange(3000.0))
    iterator = iter(DataLoader(data, 3, shuffle=True, num_workers=1))
    gc.collect()
    gc.disable()
    try:
        while iterator._thread is None:  # type: ignore[attr-defined]
            next(iterator)
        gone = weakref.ref(iterator)
        del iterator
        assert gone() is None
    finally:
        gc.enable()


def test_no_thread_is_tried_without_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without workers a script may change its data between two batches, and sees that it did."""
    monkeypatch.setattr(prefetch, "MIN_BATCH_S", 0.0)
    data = torch.zeros(90)
    loader = DataLoader(TensorDataset(data), 1, shuffle=True)
    for number, (batch,) in enumerate(loader):
        assert batch.item() == number
        data.fill_(number + 1)
    assert loader.stats().notes == []


ABANDONED = """
import time, torch
from cputrain.data.prefetch import BatchThread

def load(task):
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        torch.ones(1 << 22).sin_()
    print(task, flush=True)

thread = BatchThread(load)
for task in range(5):
    thread.put(task)
time.sleep(0.2)
del thread
"""


def test_a_script_may_end_while_a_batch_is_computed_for_a_loader_that_is_gone() -> None:
    """It waits for this batch alone: Python ends a thread within torch by SIGABRT."""
    done = subprocess.run(
        [sys.executable, "-c", ABANDONED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
