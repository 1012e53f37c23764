"""What imap works on: items are taken from the script's iterator only a little ahead of it."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from itertools import islice
from multiprocessing import TimeoutError as PoolTimeout
from multiprocessing import pool as multiprocessing_pool
from typing import TYPE_CHECKING, Any, NamedTuple

from cputrain.errors import TaskLost
from cputrain.ipc import deferred_signals, start_thread
from cputrain.pool.events import Notifier
from cputrain.pool.outcomes import stopped
from cputrain.pool.tasks import SUBMITTED_BYTES, Call, Task, are_frozen, small_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cputrain.pool.engine import Engine
    from cputrain.pool.packets import Part
    from cputrain.pool.progress import Bar

_AT_ONCE = (list, tuple, range, str, bytes)
"""Iterating these waits for nothing, so no thread is needed to do it."""

_AHEAD = 4
"""Tasks for each process that are worked on before their results are asked for."""

_AHEAD_LIGHT = 256
"""The same while their results are small."""

_AHEAD_BYTES = 32 << 20
"""What they may hold for each process, to be small."""

_AT_ONCE_MOST = 256
"""Tasks that are begun together."""

_PARTS = 8
"""How often new tasks are begun while as many as may be open end."""

_PACKED_AHEAD_BYTES = 64 << 20
"""Bytes of small arguments that are packed at the begin of a call, beyond those that have room."""


class Outcome(NamedTuple):
    """What came of a task, or of several that follow one another and all went well."""

    number: int
    """Which of the call's tasks, or the first of them."""
    tasks: int
    """How many."""
    items: int
    """How many items they had."""
    success: bool
    value: Any
    """A list of results, or the error."""


class Prefetcher:
    """Takes items, has them worked on, and holds the results until they are asked for."""

    def __init__(
        self,
        engine: Engine,
        call: Callable[[Prefetcher], Call],
        items: Iterable[Any],
        *,
        chunksize: int,
        ahead: int | None,
        ordered: bool,
        bar: Bar | None = None,
    ) -> None:
        self._bar = bar
        self._engine = engine
        self._job = next(multiprocessing_pool.job_counter)  # type: ignore[attr-defined]
        self._chunksize = chunksize
        self._ahead: int | None = None if ahead is None else max(ahead, chunksize)
        self._ordered = ordered
        self._lock = threading.Lock()
        self._changed = Notifier()
        """Of `_lock`."""
        self._taking = threading.RLock()
        """Held by the thread that cuts items into tasks."""
        self._prepared: deque[Task] = deque()
        """Tasks that have not been submitted; their arguments are packed, or will never change."""
        self._packed: deque[Task | tuple[bytes, int]] = deque()
        """What will be such tasks, packed at the begin of the call.

        Pickles and numbers of items, as many objects would burden the collector.
        """
        self._function: Part | None = None
        """For these, if it is small."""
        self._has_source_ended = False
        self._num_items = 0
        """In all tasks, submitted or not."""
        self._num_tasks = 0
        self._taken = 0
        """Items of tasks that have been submitted."""
        self._consumed = 0
        self._fill_at = 0
        """When so many have been consumed, it is time to take more."""
        self._exhausted = False
        self._discards = False
        self._open = 0
        self._next = 0
        self._early: dict[int, Outcome] = {}
        self._ready: deque[Outcome] = deque()
        self._sizes: dict[int, int] = {}
        self._part: deque[Any] = deque()
        self._threaded = type(items) not in _AT_ONCE
        # what the script does to its list from now on is of no concern to the tasks
        self._items = _iterated(items) if self._threaded else iter(_snapshot(items))
        self._call = call(self)
        self._call.has_frozen_items = not self._threaded and are_frozen(items)
        if not self._threaded and (self._call.has_frozen_items or not self._call.is_joint()):
            # it shares nothing with items that are all here: as it is now will do
            self._function = engine.freeze_function(self._call)
        engine.calls[self._job] = self
        try:
            if self._threaded:
                thread = threading.Thread(target=self._run, name="imap's iterator", daemon=True)
                with deferred_signals():
                    start_thread(thread, "imap")
            else:
                self._fill()
                if not self._call.is_frozen:
                    self._prepare_ahead()
        except BaseException:  # the system refuses a thread, or an interrupt
            with deferred_signals():
                self.stop()
            raise

    # -- taking items

    def _run(self) -> None:
        while self._wait_for_room():
            self._take_next()
        del self._items

    def _wait_for_room(self) -> bool:
        while True:
            with self._lock:
                if self._exhausted:
                    return False
                if self._room():
                    return True
                ticket = self._changed.ticket()
            self._changed.wait(ticket)

    def _most(self) -> int:
        """How many items may have been taken beyond those whose results were asked for."""
        if self._ahead is not None:
            return self._ahead
        light = _AHEAD_BYTES // max(1, self._call.max_task_bytes)
        return self._chunksize * self._engine.num_workers * max(_AHEAD, min(light, _AHEAD_LIGHT))

    def _room(self) -> int:
        """How many more tasks may be begun."""
        return (self._most() - self._taken + self._consumed) // self._chunksize

    def _take_next(self) -> None:
        """Take the items of one task from the script's iterator, and have it done."""
        try:
            items = list(islice(self._items, self._chunksize))
        except BaseException as error:  # by the script's iterator: its consumer is told
            with self._lock:
                number = self._begin(self._task(None, 1))
            self._exhaust()
            self.set_each([number], False, error)
            return
        if not items:
            self._exhaust()
            return
        task = self._task(items, len(items))
        # an iterator may hand out the same thing again, changed, or change the function
        self._engine.prepare(task, must_pack=True)
        with self._lock:
            if self._exhausted:  # nothing more is wanted since it was asked
                return
            self._begin(task)
        self._engine.submit(self._call, [task], complete=False)

    def _fill(self) -> None:
        """Have as many tasks done as there is room for, of items that nobody can change."""
        # several tasks at once: a lock and a look at the pipe for each would cost more than they
        with self._taking:
            while not self._exhausted and (room := self._room()) >= 1:
                self._take(min(room, _AT_ONCE_MOST))
            self._fill_at = self._taken - self._most() + self._most() // _PARTS
            if self._exhausted:
                self._discard_prepared()

    def _take(self, most: int) -> None:
        with deferred_signals():
            self._cut(most - len(self._prepared))
        count = min(most, len(self._prepared))
        if not self._call.is_frozen:
            count = self._prepare_some(count)
        with deferred_signals():
            with self._lock:
                if self._exhausted:
                    return
                prepared = self._prepared
                tasks = [prepared.popleft() for _ in range(count)]
                sizes = {task.index: task.num_items for task in tasks}
                self._sizes.update(sizes)
                self._taken += sum(sizes.values())
                self._open += count
            if tasks:
                self._engine.submit(self._call, tasks, complete=False)
            if self._has_source_ended and not (self._prepared or self._packed):
                self._exhaust()

    def _cut(self, count: int) -> None:
        """Cut so many more tasks, or as many as there are."""
        while count > 0 and self._packed:
            packed = self._packed.popleft()
            if isinstance(packed, Task):
                self._num_tasks += 1
                self._num_items += packed.num_items
                self._prepared.append(packed)
            else:
                data, num_items = packed
                task = self._task(None, num_items)
                task.set_packed(data, self._function)
                self._prepared.append(task)
            count -= 1
        if count <= 0:
            return
        size = self._chunksize
        items = list(islice(self._items, size * count))
        self._has_source_ended = len(items) < size * count
        if size == 1:
            chunks = [[item] for item in items]
        else:
            chunks = [items[first : first + size] for first in range(0, len(items), size)]
        call, first, number = self._call, self._num_items, self._num_tasks
        self._prepared.extend(
            [
                Task(call, number + index, first + index * size, chunk, len(chunk))
                for index, chunk in enumerate(chunks)
            ]
        )
        self._num_items += len(items)
        self._num_tasks += len(chunks)

    def _prepare_some(self, most: int) -> int:
        """Prepare the next tasks, but so few that workers need not wait; return how many."""
        size = 0
        with self._call.frozen_buffers():
            for count, task in enumerate(islice(self._prepared, most), 1):
                if not task.is_prepared:
                    self._engine.prepare(task, must_pack=False)
                size += task.prepared_bytes
                if size >= SUBMITTED_BYTES:
                    return count
        return most

    def _prepare_ahead(self) -> None:
        """Pack arguments that wait for room as they are now, as far as memory allows.

        multiprocessing packs them as fast as its workers take them.
        """
        is_joint = self._call.is_joint()
        size = 0
        index, first = self._num_tasks, self._num_items
        with self._taking, self._call.frozen_buffers():
            while not self._exhausted and size < _PACKED_AHEAD_BYTES:
                chunk = list(islice(self._items, self._chunksize))
                if not chunk:
                    return
                data = None if is_joint else small_arguments(chunk)
                if data is not None:
                    size += len(data)
                    self._packed.append((data, len(chunk)))
                else:
                    task = Task(self._call, index, first, chunk, len(chunk))
                    self._packed.append(task)
                    if not self._engine.prepare(task, must_pack=False):
                        return
                index, first = index + 1, first + len(chunk)

    def _discard_prepared(self) -> None:
        self._prepared.extend(task for task in self._packed if isinstance(task, Task))
        self._packed.clear()
        while self._prepared:
            self._engine.discard(self._prepared.popleft())

    def _task(self, items: list[Any] | None, num_items: int) -> Task:
        task = Task(self._call, self._num_tasks, self._num_items, items, num_items)
        self._num_tasks += 1
        self._num_items += num_items
        return task

    def _begin(self, task: Task) -> int:
        """A task is about to be submitted; called with the lock held."""
        count = task.num_items
        self._sizes[task.index] = count
        self._taken += count
        self._open += 1
        return task.index

    def _exhaust(self) -> None:
        with self._lock:
            self._exhausted = True
            self._changed.notify_all()
        self._engine.complete(self._call)
        self._settle()

    def _settle(self) -> None:
        """Once nothing more can come, the pool has one call less."""
        with self._lock:
            if self._exhausted and not self._open and self._job in self._engine.calls:
                del self._engine.calls[self._job]
                if self._bar is not None:
                    self._bar.close()

    # -- results

    def set_each(self, numbers: Sequence[int], success: bool, value: Any) -> None:
        """What came of these tasks: a list of all results, or the error of each."""
        several = success and len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
        if isinstance(value, StopIteration) and not success:
            # to raise it would say that there are no more results (PEP 479)
            value = stopped(self._call.name, value)
        with self._lock:
            counts = [self._sizes.pop(number) for number in numbers]
            self._open -= len(numbers)
            if self._bar is not None and not isinstance(value, TaskLost):
                self._bar.advance(sum(counts))
            if self._discards:
                self._consumed += sum(counts)
            elif several:
                self._keep(Outcome(numbers[0], len(numbers), sum(counts), success, value))
            else:
                for number, count in zip(numbers, counts, strict=True):
                    own = value[:count] if success else value
                    self._keep(Outcome(number, 1, count, success, own))
                    value = value[count:] if success else value
            self._changed.notify_all()
        if self._exhausted:
            self._settle()

    def _keep(self, outcome: Outcome) -> None:
        """Until it is asked for."""
        if not self._ordered:
            self._ready.append(outcome)
            return
        self._early[outcome.number] = outcome
        while self._next in self._early:
            self._ready.append(self._early.pop(self._next))
            self._next += self._ready[-1].tasks

    def next(self, timeout: float | None = None) -> Any:
        """The next result; an error in its place is raised."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if not self._part and self._ready:
                    outcome = self._ready.popleft()
                    if not outcome.success:
                        self._consume(outcome.items)
                        raise outcome.value
                    self._part.extend(outcome.value)
                if self._part:
                    value = self._part.popleft()
                    self._consumed += 1
                    if self._threaded:
                        self._changed.notify_all()
                    break
            self._wait_for_outcome(end)
        if self._consumed >= self._fill_at and not self._threaded:
            self._fill()
        return value

    def next_outcome(self) -> Outcome:
        """What came of the next task, whether it is an error or not."""
        while True:
            with self._lock:
                if self._ready:
                    outcome = self._ready.popleft()
                    self._consume(outcome.items)
                    break
            self._wait_for_outcome(None)
        if not self._threaded:
            self._fill()
        return outcome

    def _consume(self, items: int) -> None:
        self._consumed += items
        if self._threaded:
            self._changed.notify_all()

    def _wait_for_outcome(self, end: float | None) -> None:
        """Wait until there may be one; StopIteration if there never will be, or PoolTimeout."""
        with self._lock:
            if self._ready or self._part:
                return
            if self._exhausted and not self._open:
                raise StopIteration
            remaining_s = None if end is None else end - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                raise PoolTimeout
            ticket = self._changed.ticket()
        self._changed.wait(ticket, remaining_s)

    def bundle(self, nanoseconds: int) -> None:
        """Have so much work travel together: nobody waits for one of the results.

        Doing a task twice must do no harm.
        """
        self._call.bundle_time_ns = self._call.bundle_below_ns = nanoseconds
        self._call.repeatable = True

    # -- the end

    def lift(self, *, discards: bool = False) -> None:
        """Have all that is left done, without waiting for anybody to ask for it."""
        with self._lock:
            self._ahead = sys.maxsize
            self._discards = discards
            self._changed.notify_all()
        if not self._threaded:
            self._fill()

    def stop(self, error: BaseException | None = None) -> None:
        """Take no more items."""
        with self._lock:
            if error is not None and not self._exhausted:
                self._ready.append(Outcome(self._num_tasks, 1, 0, False, error))
            self._exhausted = True
            self._changed.notify_all()
        self._engine.forget(self._call)
        if self._taking.acquire(blocking=False):  # else who takes items sees that it is over
            try:
                self._discard_prepared()
            finally:
                self._taking.release()
        self._settle()


def _snapshot(items: Any) -> Any:
    """The items as they are now, of a container that can be iterated without calling a script."""
    return items[:] if type(items) is list else items


def _iterated(items: Iterable[Any]) -> Iterator[Any]:
    """An iterator whose first step is the first thing that can fail, as multiprocessing's."""
    yield from items


class LazyResults:
    """What imap returns."""

    def __init__(self, feed: Prefetcher, engine: Engine, pool: object) -> None:
        self._feed = feed
        self._engine = engine
        self._pool: object = pool
        """Not to be ended while its results are wanted."""
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def next(self, timeout: float | None = None) -> Any:
        """The next result; multiprocessing.TimeoutError if it does not come in time."""
        self._begun = True
        try:
            return self._feed.next(timeout)
        except StopIteration:
            self._pool = None
            raise

    def __next__(self) -> Any:
        return self.next()

    def next_outcome(self) -> Outcome:
        """What came of one more task; StopIteration at the end."""
        self._begun = True
        return self._feed.next_outcome()

    def bundled(self, nanoseconds: int) -> LazyResults:
        """As `Feed.bundle`; this."""
        self._feed.bundle(nanoseconds)
        return self

    def close(self) -> None:
        """Nothing more is wanted."""
        self._begun = True
        self._feed.stop()

    def __del__(self) -> None:
        # in whichever thread, whatever it holds: so the engine's does it. Who has never asked for
        # a result wants what the function does; who has stopped asking wants no more
        feed = self.__dict__.get("_feed")
        if feed is not None:
            end = feed.stop if self._begun else lambda: feed.lift(discards=True)
            self._engine.do(end)
