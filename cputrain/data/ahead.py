"""Batches made by a thread while the script computes, where a trial on the spot says it pays."""

from __future__ import annotations

import atexit
import ctypes
import queue
import statistics as mathematics
import threading
import weakref
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.data.statistics import Statistics

DEPTH = 2
"""Batches made ahead."""

WORTHWHILE = 1e-3
"""Seconds that a batch must take before a thread is tried: handing over costs a tenth of that."""


class Ahead:
    """An iterator whose items are made by a thread."""

    def __init__(self, source: Iterator[Any]) -> None:
        self._source = source
        self._queue: queue.Queue[tuple[bool, Any]] = queue.Queue(DEPTH)
        self._stopping, self._dropped = threading.Event(), threading.Event()
        self._ended = False
        self._thread = threading.Thread(
            target=_fill,
            args=(source, self._queue, self._stopping, self._dropped),
            name="cputrain-ahead",
            daemon=True,
        )
        weakref.finalize(self, self._dropped.set)
        self._thread.start()
        _running.add(self)

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Any:
        if self._ended:
            raise StopIteration
        good, item = self._queue.get()
        if good:
            return item
        self._ended = True
        if item is None:
            raise StopIteration
        raise item

    def end(self) -> None:
        """End the thread, and forget what it has made."""
        self._stopping.set()
        self._dropped.set()
        self._thread.join()

    def stop(self) -> Iterator[Any]:
        """End the thread; what it has made already, and then the rest as before."""
        self._stopping.set()
        left: list[tuple[bool, Any]] = []
        while self._thread.is_alive() or not self._queue.empty():
            try:
                left.append(self._queue.get(timeout=0.01))
            except queue.Empty:
                continue
        return _rest(left, self._source)


_running: weakref.WeakSet[Ahead] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """A thread that is inside of torch while the interpreter is taken down brings it down."""
    for ahead in list(_running):
        ahead.end()


def _rest(left: list[tuple[bool, Any]], source: Iterator[Any]) -> Iterator[Any]:
    for good, item in left:
        if good:
            yield item
        elif item is not None:
            raise item
    yield from source


def _fill(
    source: Iterator[Any],
    items: queue.Queue[tuple[bool, Any]],
    stopping: threading.Event,
    dropped: threading.Event,
) -> None:
    _compute_alone()
    item: tuple[bool, Any] = (True, None)
    while item[0] and not stopping.is_set():
        try:
            item = (True, next(source))
        except StopIteration:
            item = (False, None)
        except BaseException as error:  # raised where the script waits for the batch
            item = (False, error)
        while not dropped.is_set():
            try:
                items.put(item, timeout=0.1)
                break
            except queue.Full:
                continue
        else:
            return


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
