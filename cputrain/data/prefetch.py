"""A thread that prefetches batches, and a trial that measures whether it shortens steps."""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import statistics
import threading
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.data.statistics import Statistics

DEPTH = 2
"""Batches that are prefetched at the same time."""

MIN_BATCH_S = 1e-3
"""Seconds that a batch must take for a trial; receiving one from a thread costs a tenth of that."""


class BatchThread:
    """A thread that computes a batch from each task, in order.

    Args:
        load_batch: Returns the batch of a task; called in the thread.
    """

    def __init__(self, load_batch: Callable[[Any], Any]) -> None:
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._pending: deque[Any] = deque()
        """Tasks whose results `get` has not returned."""
        self._load_batch = load_batch
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=_run,
            args=(load_batch, self._tasks, self._results),
            name="cputrain-prefetch",
            daemon=True,
        )
        self._thread.start()
        _running[self._thread] = self._tasks
        # the finalizer refers to the queue alone: a reference to self would keep the batches of an
        # abandoned loader
        weakref.finalize(self, self._tasks.put, None)

    def __len__(self) -> int:
        """Return the number of tasks whose results `get` has not returned."""
        return len(self._pending)

    def put(self, task: Any) -> None:
        """Enqueue a task."""
        self._pending.append(task)
        self._tasks.put(task)

    def get(self) -> tuple[Any, Any]:
        """Wait for the oldest task; return it and its batch, or raise the error of `load_batch`."""
        task = self._pending.popleft()
        if os.getpid() != self._process:  # a forked child has a copy of the queues, but no thread
            return task, self._load_batch(task)
        is_ok, batch = self._results.get()
        if is_ok:
            return task, batch
        try:
            raise batch
        finally:
            del batch  # the error's traceback refers to this frame: break the cycle


_running: dict[threading.Thread, queue.SimpleQueue[Any]] = {}
"""Threads that have not ended, and their tasks; also those whose loader is gone."""


@atexit.register
def _stop_all() -> None:
    """End all threads before the interpreter finalizes; a thread inside torch would crash then."""
    for thread, tasks in list(_running.items()):
        with suppress(queue.Empty):
            while True:  # nobody is going to have these batches
                tasks.get_nowait()
        tasks.put(None)
        thread.join()


def _run(
    load_batch: Callable[[Any], Any],
    tasks: queue.SimpleQueue[Any],
    results: queue.SimpleQueue[tuple[bool, Any]],
) -> None:
    """Run tasks until None comes; the thread's main function."""
    _use_one_openmp_thread()
    while (task := tasks.get()) is not None:
        try:
            results.put((True, load_batch(task)))
        except BaseException as error:  # raised in `get`
            results.put((False, error))
        del task
    del _running[threading.current_thread()]


def _use_one_openmp_thread() -> None:
    """Limit this thread to one OpenMP thread; `torch.set_num_threads` would limit all threads."""
    torch.get_num_threads()  # torch initializes a new thread's number at the first call
    try:
        ctypes.CDLL(None).omp_set_num_threads(1)
    except (AttributeError, OSError):  # no OpenMP library, or one without this name
        return


class PrefetchTrial:
    """A comparison of median step times without and with a prefetch thread."""

    NUM_STEPS = 6
    """Steps that are measured in each phase."""
    NUM_WARMUP_STEPS = 3
    """Steps at the beginning of a phase that are not measured."""

    def __init__(self, loader_statistics: Statistics) -> None:
        self.is_prefetching = False
        """Whether batches should be prefetched at this time."""
        self.is_over = False
        """Whether the trial has decided."""
        self._loader_statistics = loader_statistics
        self._step_times_s: dict[bool, list[float]] = {False: [], True: []}
        """Measured step times in seconds, without and with the thread."""
        self._batch_times_s: list[float] = []
        """Seconds that batches took without the thread."""
        self._last_end = 0.0
        self._num_skipped_left = self.NUM_WARMUP_STEPS

    def step(self, begin: float, end: float) -> None:
        """Record one step.

        Args:
            begin: When the script asked for the batch, by `time.perf_counter`.
            end: When the batch was returned.
        """
        step_s, self._last_end = end - self._last_end, end
        if self._num_skipped_left:
            self._num_skipped_left -= 1
            return
        self._step_times_s[self.is_prefetching].append(step_s)
        if not self.is_prefetching:
            self._batch_times_s.append(end - begin)
        if len(self._step_times_s[self.is_prefetching]) < self.NUM_STEPS:
            return
        if not self.is_prefetching and statistics.median(self._batch_times_s) >= MIN_BATCH_S:
            self.is_prefetching, self._num_skipped_left = True, self.NUM_WARMUP_STEPS
        else:
            self._decide()

    def _decide(self) -> None:
        """End the trial; keep the thread if the median step is at least 5 % shorter with it."""
        self.is_over = True
        if not self.is_prefetching:
            return
        without_s, with_s = (statistics.median(self._step_times_s[key]) for key in (False, True))
        self.is_prefetching = with_s < 0.95 * without_s
        self._loader_statistics.notes.append(
            f"a thread {'prefetches' if self.is_prefetching else 'does not prefetch'} batches: "
            f"a step took {with_s * 1e3:.1f} ms with it and {without_s * 1e3:.1f} ms without"
        )
