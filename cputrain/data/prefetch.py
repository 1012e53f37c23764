"""Batches made by a thread while the script computes, where a trial on the spot says it pays."""

from __future__ import annotations

import atexit
import ctypes
import os
import queue
import statistics as mathematics
import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.data.statistics import Statistics

DEPTH = 2
"""Batches made ahead."""

WORTHWHILE = 1e-3
"""Seconds that a batch must take before a thread is tried: handing over costs a tenth of that."""


class BatchThread:
    """A thread that makes a batch of each task, in order."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()
        self._pending: deque[Any] = deque()
        """Tasks whose results have not been taken."""
        self._make = make
        self._process = os.getpid()
        self._thread = threading.Thread(
            target=_serve,
            args=(make, self._tasks, self._results),
            name="cputrain-ahead",
            daemon=True,
        )
        self._thread.start()
        # (it must not hold what it ends: a loader left early lets go of its batches at once)
        weakref.finalize(self, self._tasks.put, None)
        _running.add(self)

    def __len__(self) -> int:
        """Return the number of tasks whose results have not been taken."""
        return len(self._pending)

    def put(self, task: Any) -> None:
        """Have a batch made."""
        self._pending.append(task)
        self._tasks.put(task)

    def get(self) -> tuple[Any, Any]:
        """Return the first task and its batch, or raise what was raised where it was made."""
        task = self._pending.popleft()
        if os.getpid() != self._process:  # a forked process has a copy of this, and no thread
            return task, self._make(task)
        is_good, batch = self._results.get()
        if is_good:
            return task, batch
        try:
            raise batch
        finally:
            del batch  # its traceback holds this frame, and all that the frame holds

    def end(self) -> None:
        """End the thread when it has made what it has been asked for."""
        self._tasks.put(None)
        self._thread.join()


_running: weakref.WeakSet[BatchThread] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A thread that is inside of torch while the interpreter is taken down brings it down."""
    for thread in list(_running):
        thread.end()


def _serve(
    make: Callable[[Any], Any],
    tasks: queue.SimpleQueue[Any],
    results: queue.SimpleQueue[tuple[bool, Any]],
) -> None:
    _compute_alone()
    while (task := tasks.get()) is not None:
        try:
            results.put((True, make(task)))
        except BaseException as error:  # raised where the script waits for the batch
            results.put((False, error))
        del task


def _compute_alone() -> None:
    """One OpenMP thread for this thread alone: torch's own setting would reach the script's."""
    torch.get_num_threads()  # torch sets a new thread's number when it first asks for it
    try:
        ctypes.CDLL(None).omp_set_num_threads(1)
    except (AttributeError, OSError):  # OpenMP under another name, or none at all
        return


class Trial:
    """Whether a thread makes steps shorter: some without, some with, and the median decides."""

    STEPS = 6
    SETTLING = 3

    def __init__(self, statistics: Statistics) -> None:
        self.ahead = False
        """Whether the thread is to be used now."""
        self.over = False
        self._statistics = statistics
        self._periods: dict[bool, list[float]] = {False: [], True: []}
        self._making: list[float] = []
        self._before = 0.0
        self._settle = self.SETTLING

    def step(self, begin: float, end: float) -> None:
        """A batch was asked for and given."""
        period, self._before = end - self._before, end
        if self._settle:
            self._settle -= 1
            return
        self._periods[self.ahead].append(period)
        if not self.ahead:
            self._making.append(end - begin)
        if len(self._periods[self.ahead]) < self.STEPS:
            return
        if not self.ahead and mathematics.median(self._making) >= WORTHWHILE:
            self.ahead, self._settle = True, self.SETTLING
        else:
            self._decide()

    def _decide(self) -> None:
        self.over = True
        if not self.ahead:
            return
        alone, ahead = (mathematics.median(self._periods[way]) for way in (False, True))
        self.ahead = ahead < 0.95 * alone
        self._statistics.notes.append(
            f"a thread {'makes' if self.ahead else 'does not make'} batches ahead: a step took "
            f"{ahead * 1e3:.1f} ms with it and {alone * 1e3:.1f} ms without"
        )
