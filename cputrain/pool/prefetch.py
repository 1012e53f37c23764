"""The prefetcher behind `imap`: it takes items only a bounded number ahead of the consumer."""

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
from cputrain.pool.exit_wait import wait_at_exit
from cputrain.pool.outcomes import stop_iteration_error
from cputrain.pool.tasks import SUBMITTED_BYTES, Call, Task, are_frozen, small_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cputrain.pool.engine import Engine
    from cputrain.pool.packets import PacketPayload
    from cputrain.pool.progress import Bar

_NONBLOCKING_TYPES = (list, tuple, range, str, bytes)
"""Types whose iteration never blocks, so that no thread is needed for it."""

_AHEAD_PER_WORKER = 4
"""Tasks per worker that run ahead of the consumer."""

_MAX_AHEAD_PER_WORKER = 256
"""Tasks per worker that run ahead of the consumer while their results are small."""

_AHEAD_BYTES_PER_WORKER = 32 << 20
"""Bytes per worker that results ahead of the consumer may hold."""

_MAX_SUBMITTED_TOGETHER = 256
"""Maximum number of tasks that are submitted together."""

_REFILLS = 8
"""How many times tasks are submitted while as many results as may be ahead are consumed."""

_PACKED_AHEAD_BYTES = 64 << 20
"""Bytes of small arguments that are packed at the begin of a call, beyond the tasks with room."""


class TaskOutcome(NamedTuple):
    """The outcome of a task, or of several consecutive tasks that succeeded."""

    number: int
    """The index in the call of the task, or of the first task."""
    tasks: int
    """How many tasks."""
    items: int
    """How many items the tasks have."""
    success: bool
    value: Any
    """The list of results, or the exception."""


class Prefetcher:
    """Takes items, submits them as tasks, and stores the results until they are consumed."""

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
        """Notifies changes of the state that `_lock` guards."""
        self._take_lock = threading.RLock()
        """Held by the thread that splits items into tasks."""
        self._prepared: deque[Task] = deque()
        """Tasks to be submitted, whose arguments are packed or immutable."""
        self._packed: deque[Task | tuple[bytes, int]] = deque()
        """Later tasks, packed at the begin of the call.

        Small ones are pairs (pickle, number of items): many Task objects would slow the garbage
        collector.
        """
        self._packed_function: PacketPayload | None = None
        """The packed function of these tasks, if it is small."""
        self._has_source_ended = False
        self._num_items = 0
        """Items in all tasks, submitted or not."""
        self._num_tasks = 0
        self._num_taken = 0
        """Items of tasks that have been submitted."""
        self._num_consumed = 0
        self._refill_at = 0
        """The number of consumed items at which more items are taken."""
        self._exhausted = False
        self._discards_results = False
        self._num_open = 0
        self._next_index = 0
        self._early: dict[int, TaskOutcome] = {}
        self._ready: deque[TaskOutcome] = deque()
        self._item_counts: dict[int, int] = {}
        self._current_results: deque[Any] = deque()
        self._is_threaded = type(items) not in _NONBLOCKING_TYPES
        # a copy: later changes to the caller's list do not affect the tasks
        self._items = _lazy_iterator(items) if self._is_threaded else iter(_snapshot(items))
        self._call = call(self)
        self._call.has_frozen_items = not self._is_threaded and are_frozen(items)
        if not self._is_threaded and (self._call.has_frozen_items or not self._call.is_joint()):
            # the function shares no state with items that are all here: pack it once, now
            self._packed_function = engine.freeze_function(self._call)
        engine.calls[self._job] = self
        try:
            if self._is_threaded:
                thread = threading.Thread(target=self._run, name="imap's iterator", daemon=True)
                with deferred_signals():
                    start_thread(thread, "imap")
                wait_at_exit(thread)
            else:
                self._fill()
                if not self._call.is_frozen:
                    self._prepare_ahead()
        except BaseException:  # the system refuses a thread, or an interrupt
            with deferred_signals():
                self.stop()
            raise

    # -- items

    def _run(self) -> None:
        """Take items in a thread, as the caller's iterator may block."""
        while self._wait_for_room():
            self._take_next()
        del self._items

    def _wait_for_room(self) -> bool:
        """Wait until another task may be submitted; return False when stopped."""
        while True:
            with self._lock:
                if self._exhausted:
                    return False
                if self._num_free():
                    return True
                ticket = self._changed.ticket()
            self._changed.wait(ticket)

    def _max_ahead(self) -> int:
        """Return how many items may be taken ahead of the consumed ones."""
        if self._ahead is not None:
            return self._ahead
        max_by_bytes = _AHEAD_BYTES_PER_WORKER // max(1, self._call.max_task_bytes)
        return (
            self._chunksize
            * self._engine.num_workers
            * max(_AHEAD_PER_WORKER, min(max_by_bytes, _MAX_AHEAD_PER_WORKER))
        )

    def _num_free(self) -> int:
        """Return how many more tasks may be submitted."""
        return (self._max_ahead() - self._num_taken + self._num_consumed) // self._chunksize

    def _take_next(self) -> None:
        """Take the items of one task from the caller's iterator and submit the task."""
        try:
            items = list(islice(self._items, self._chunksize))
        except BaseException as error:  # raised by the caller's iterator: the consumer gets it
            with self._lock:
                number = self._register(self._task(None, 1))
            self._exhaust()
            self.deliver([number], False, error)
            return
        if not items:
            self._exhaust()
            return
        task = self._task(items, len(items))
        # an iterator may mutate and yield the same object again, or mutate the function
        self._engine.prepare(task, must_pack=True)
        with self._lock:
            if self._exhausted:  # stopped while the iterator ran
                return
            self._register(task)
        self._engine.submit(self._call, [task], complete=False)

    def _fill(self) -> None:
        """Submit as many tasks as there is room for, of items whose iteration never blocks."""
        # several tasks together: a lock and a pipe check per task would cost more than the task
        with self._take_lock:
            while not self._exhausted and (num_free := self._num_free()) >= 1:
                self._submit_some(min(num_free, _MAX_SUBMITTED_TOGETHER))
            self._refill_at = self._num_taken - self._max_ahead() + self._max_ahead() // _REFILLS
            if self._exhausted:
                self._discard_prepared()

    def _submit_some(self, max_tasks: int) -> None:
        """Submit up to `max_tasks` tasks."""
        with deferred_signals():
            self._split_items(max_tasks - len(self._prepared))
        count = min(max_tasks, len(self._prepared))
        if not self._call.is_frozen:
            count = self._prepare_some(count)
        with deferred_signals():
            with self._lock:
                if self._exhausted:
                    return
                prepared = self._prepared
                tasks = [prepared.popleft() for _ in range(count)]
                sizes = {task.index: task.num_items for task in tasks}
                self._item_counts.update(sizes)
                self._num_taken += sum(sizes.values())
                self._num_open += count
            if tasks:
                self._engine.submit(self._call, tasks, complete=False)
            if self._has_source_ended and not (self._prepared or self._packed):
                self._exhaust()

    def _split_items(self, count: int) -> None:
        """Split off up to `count` more tasks from the items."""
        while count > 0 and self._packed:
            packed = self._packed.popleft()
            if isinstance(packed, Task):
                self._num_tasks += 1
                self._num_items += packed.num_items
                self._prepared.append(packed)
            else:
                data, num_items = packed
                task = self._task(None, num_items)
                task.set_packed(data, self._packed_function)
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

    def _prepare_some(self, max_tasks: int) -> int:
        """Prepare the next tasks, few enough that workers do not idle; return how many."""
        num_bytes = 0
        with self._call.frozen_buffers():
            for count, task in enumerate(islice(self._prepared, max_tasks), 1):
                if not task.is_prepared:
                    self._engine.prepare(task, must_pack=False)
                num_bytes += task.prepared_bytes
                if num_bytes >= SUBMITTED_BYTES:
                    return count
        return max_tasks

    def _prepare_ahead(self) -> None:
        """Pack the arguments of tasks that wait for room, as far as memory allows.

        multiprocessing packs them as fast as its workers take them.
        """
        is_joint = self._call.is_joint()
        num_bytes = 0
        index, first = self._num_tasks, self._num_items
        with self._take_lock, self._call.frozen_buffers():
            while not self._exhausted and num_bytes < _PACKED_AHEAD_BYTES:
                chunk = list(islice(self._items, self._chunksize))
                if not chunk:
                    return
                data = None if is_joint else small_arguments(chunk)
                if data is not None:
                    num_bytes += len(data)
                    self._packed.append((data, len(chunk)))
                else:
                    task = Task(self._call, index, first, chunk, len(chunk))
                    self._packed.append(task)
                    if not self._engine.prepare(task, must_pack=False):
                        return
                index, first = index + 1, first + len(chunk)

    def _discard_prepared(self) -> None:
        """Release all tasks that have been prepared but not submitted."""
        self._prepared.extend(task for task in self._packed if isinstance(task, Task))
        self._packed.clear()
        while self._prepared:
            self._engine.discard(self._prepared.popleft())

    def _task(self, items: list[Any] | None, num_items: int) -> Task:
        """Return the next task, of these items."""
        task = Task(self._call, self._num_tasks, self._num_items, items, num_items)
        self._num_tasks += 1
        self._num_items += num_items
        return task

    def _register(self, task: Task) -> int:
        """Count a task that is about to be submitted; called with `_lock` held."""
        count = task.num_items
        self._item_counts[task.index] = count
        self._num_taken += count
        self._num_open += 1
        return task.index

    def _exhaust(self) -> None:
        """Record that no more items follow."""
        with self._lock:
            self._exhausted = True
            self._changed.notify_all()
        self._engine.complete(self._call)
        self._settle()

    def _settle(self) -> None:
        """Remove the call from the pool's calls once no result is outstanding."""
        with self._lock:
            if self._exhausted and not self._num_open and self._job in self._engine.calls:
                del self._engine.calls[self._job]
                if self._bar is not None:
                    self._bar.close()

    # -- results

    def deliver(self, numbers: Sequence[int], success: bool, value: Any) -> None:
        """Store the outcome of tasks: a list of all their results, or one error for all."""
        is_run = success and len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
        if isinstance(value, StopIteration) and not success:
            # raised as it is, it would end the consumer's iteration (PEP 479)
            value = stop_iteration_error(self._call.name, value)
        with self._lock:
            item_counts = [self._item_counts.pop(number) for number in numbers]
            self._num_open -= len(numbers)
            if self._bar is not None and not isinstance(value, TaskLost):
                self._bar.advance(sum(item_counts))
            if self._discards_results:
                self._num_consumed += sum(item_counts)
            elif is_run:
                self._store(TaskOutcome(numbers[0], len(numbers), sum(item_counts), success, value))
            else:
                for number, num_items in zip(numbers, item_counts, strict=True):
                    results = value[:num_items] if success else value
                    self._store(TaskOutcome(number, 1, num_items, success, results))
                    value = value[num_items:] if success else value
            self._changed.notify_all()
        if self._exhausted:
            self._settle()

    def _store(self, outcome: TaskOutcome) -> None:
        """Store an outcome until it is consumed; called with `_lock` held."""
        if not self._ordered:
            self._ready.append(outcome)
            return
        self._early[outcome.number] = outcome
        while self._next_index in self._early:
            self._ready.append(self._early.pop(self._next_index))
            self._next_index += self._ready[-1].tasks

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result, or raise the error in its place."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._lock:
                if not self._current_results and self._ready:
                    outcome = self._ready.popleft()
                    if not outcome.success:
                        self._consume(outcome.items)
                        raise outcome.value
                    self._current_results.extend(outcome.value)
                if self._current_results:
                    value = self._current_results.popleft()
                    self._num_consumed += 1
                    if self._is_threaded:
                        self._changed.notify_all()
                    break
            self._wait_for_outcome(deadline_s)
        if self._num_consumed >= self._refill_at and not self._is_threaded:
            self._fill()
        return value

    def next_outcome(self) -> TaskOutcome:
        """Return the outcome of the next tasks; do not raise its error."""
        while True:
            with self._lock:
                if self._ready:
                    outcome = self._ready.popleft()
                    self._consume(outcome.items)
                    break
            self._wait_for_outcome(None)
        if not self._is_threaded:
            self._fill()
        return outcome

    def _consume(self, items: int) -> None:
        """Count consumed items; called with `_lock` held."""
        self._num_consumed += items
        if self._is_threaded:
            self._changed.notify_all()

    def _wait_for_outcome(self, deadline_s: float | None) -> None:
        """Wait for an outcome; raise StopIteration at the end, PoolTimeout at the deadline."""
        with self._lock:
            if self._ready or self._current_results:
                return
            if self._exhausted and not self._num_open:
                raise StopIteration
            remaining_s = None if deadline_s is None else deadline_s - time.monotonic()
            if remaining_s is not None and remaining_s <= 0:
                raise PoolTimeout
            ticket = self._changed.ticket()
        self._changed.wait(ticket, remaining_s)

    def bundle(self, time_ns: int) -> None:
        """Send tasks in bundles of this many nanoseconds of work; tasks must be idempotent."""
        self._call.bundle_time_ns = self._call.bundle_below_ns = time_ns
        self._call.repeatable = True

    # -- the end

    def run_remaining(self, *, discards: bool = False) -> None:
        """Run all remaining tasks without waiting for the consumer."""
        with self._lock:
            self._ahead = sys.maxsize
            self._discards_results = discards
            self._changed.notify_all()
        if not self._is_threaded:
            self._fill()

    def stop(self, error: BaseException | None = None) -> None:
        """Take no more items, and drop tasks that have not been sent."""
        with self._lock:
            if error is not None and not self._exhausted:
                self._ready.append(TaskOutcome(self._num_tasks, 1, 0, False, error))
            self._exhausted = True
            self._changed.notify_all()
        self._engine.forget(self._call)
        # if another thread holds the lock, that thread sees `_exhausted` and discards them
        if self._take_lock.acquire(blocking=False):
            try:
                self._discard_prepared()
            finally:
                self._take_lock.release()
        self._settle()


def _snapshot(items: Any) -> Any:
    """Return a copy of a list; other containers of `_NONBLOCKING_TYPES` are immutable."""
    return items[:] if type(items) is list else items


def _lazy_iterator(items: Iterable[Any]) -> Iterator[Any]:
    """Return an iterator that calls `iter(items)` at its first step, as multiprocessing's does."""
    yield from items


class LazyResults:
    """The iterator that `imap` returns."""

    def __init__(self, prefetcher: Prefetcher, engine: Engine, pool: object) -> None:
        self._prefetcher = prefetcher
        self._engine = engine
        self._pool: object = pool
        """Keeps the pool alive while its results are wanted."""
        self._has_begun = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def next(self, timeout: float | None = None) -> Any:
        """Return the next result; raise multiprocessing.TimeoutError after `timeout` seconds."""
        self._has_begun = True
        try:
            return self._prefetcher.next(timeout)
        except StopIteration:
            self._pool = None
            raise

    def __next__(self) -> Any:
        return self.next()

    def next_outcome(self) -> TaskOutcome:
        """Return the outcome of the next tasks; raise StopIteration at the end."""
        self._has_begun = True
        return self._prefetcher.next_outcome()

    def bundled(self, time_ns: int) -> LazyResults:
        """Send tasks in bundles, as `Prefetcher.bundle`; return self."""
        self._prefetcher.bundle(time_ns)
        return self

    def close(self) -> None:
        """Drop the remaining results."""
        self._has_begun = True
        self._prefetcher.stop()

    def __del__(self) -> None:
        # a finalizer runs in any thread, with any lock held: so the engine's thread does it. If no
        # result was ever consumed, the function's side effects are wanted; else nothing more is
        prefetcher = self.__dict__.get("_prefetcher")
        if prefetcher is not None:
            action = (
                prefetcher.stop
                if self._has_begun
                else lambda: prefetcher.run_remaining(discards=True)
            )
            self._engine.do(action)
