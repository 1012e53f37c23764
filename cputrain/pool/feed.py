"""What imap works on: items are taken from the script's iterator only a little ahead of it."""

from __future__ import annotations

import sys
import threading
from collections import deque
from itertools import islice
from multiprocessing import TimeoutError as PoolTimeout
from multiprocessing import pool as multiprocessing_pool
from typing import TYPE_CHECKING, Any, NamedTuple

from cputrain.errors import ResourceError, TaskLost
from cputrain.pool.tasks import Call, Task
from cputrain.shared import start_thread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cputrain.pool.engine import Engine
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


class Feed:
    """Takes items, has them worked on, and holds the results until they are asked for."""

    def __init__(
        self,
        engine: Engine,
        call: Callable[[Feed], Call],
        items: Iterable[Any],
        *,
        chunksize: int,
        ahead: int | None,
        ordered: bool,
        bar: Bar | None = None,
    ) -> None:
        self._bar = bar
        self._engine = engine
        self._job = next(multiprocessing_pool.job_counter)
        self._items = iter(items)
        self._chunksize = chunksize
        self._ahead: int | None = None if ahead is None else max(ahead, chunksize)
        self._ordered = ordered
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._taking = threading.RLock()
        self._taken = 0
        """Items that have been taken."""
        self._tasks = 0
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
        engine.calls[self._job] = self
        self._call = call(self)
        self._threaded = not isinstance(items, _AT_ONCE)
        self._plain = type(items) in _AT_ONCE
        if self._threaded:
            thread = threading.Thread(target=self._run, name="imap's iterator", daemon=True)
            try:
                start_thread(thread, "imap")
            except ResourceError:
                del engine.calls[self._job]
                raise
        else:
            self._fill()

    # -- taking items

    def _run(self) -> None:
        while self._wait_for_room():
            self._take(1)
        del self._items

    def _wait_for_room(self) -> bool:
        with self._changed:
            while not self._exhausted and not self._room():
                self._changed.wait()
            return not self._exhausted

    def _most(self) -> int:
        """How many items may have been taken beyond those whose results were asked for."""
        if self._ahead is not None:
            return self._ahead
        light = _AHEAD_BYTES // max(1, self._call.heaviest)
        return self._chunksize * self._engine.processes * max(_AHEAD, min(light, _AHEAD_LIGHT))

    def _room(self) -> int:
        """How many more tasks may be begun."""
        return (self._most() - self._taken + self._consumed) // self._chunksize

    def _fill(self) -> None:
        # several tasks at once: a lock and a look at the pipe for each would cost more than they
        with self._taking:
            while not self._exhausted and (room := self._room()) >= 1:
                self._take(min(room, _AT_ONCE_MOST))
            self._fill_at = self._taken - self._most() + self._most() // _PARTS

    def _take(self, most: int) -> None:
        """Take the items of some tasks, and have them done."""
        if self._plain:
            self._take_together(most)
            return
        tasks: list[Task] = []
        error: BaseException | None = None
        ended = False
        for _ in range(most):
            try:
                items = list(islice(self._items, self._chunksize))
            except BaseException as raised:  # by the script's iterator: its consumer is told
                error = raised
                break
            if not items:
                ended = True
                break
            with self._changed:
                if self._exhausted:  # nothing more is wanted since it was asked
                    break
                first = self._taken
                tasks.append(Task(self._call, self._begin(len(items)), first, items))
            if self._threaded:  # an iterator may hand out the same thing again, changed
                self._engine.prepare(tasks[-1])
        if tasks:
            self._engine.submit(self._call, tasks, complete=False)
        if error is not None:
            with self._changed:
                index = self._begin(1)
            self._exhaust()
            self.set_each([index], False, error)
        elif ended:
            self._exhaust()

    def _take_together(self, most: int) -> None:
        """The same from what cannot fail."""
        size = self._chunksize
        items = list(islice(self._items, size * most))
        parts = [items[at : at + size] for at in range(0, len(items), size)]
        with self._lock:
            if self._exhausted:
                return
            tasks = [
                Task(self._call, self._begin(len(part)), self._taken - len(part), part)
                for part in parts
            ]
        if tasks:
            self._engine.submit(self._call, tasks, complete=False)
        if len(items) < size * most:
            self._exhaust()

    def _begin(self, items: int) -> int:
        index = self._tasks
        self._sizes[index] = items
        self._tasks += 1
        self._taken += items
        self._open += 1
        return index

    def _exhaust(self) -> None:
        with self._changed:
            self._exhausted = True
            self._changed.notify_all()
        self._engine.complete(self._call)
        self._settle()

    def _settle(self) -> None:
        """Once nothing more can come, the pool has one call less."""
        with self._changed:
            if self._exhausted and not self._open and self._job in self._engine.calls:
                del self._engine.calls[self._job]
                if self._bar is not None:
                    self._bar.close()

    # -- results

    def set_each(self, numbers: Sequence[int], success: bool, value: Any) -> None:
        """What came of these tasks: a list of all results, or the error of each."""
        several = success and len(numbers) > 1 and numbers[-1] - numbers[0] == len(numbers) - 1
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
        with self._lock:
            if not self._part:
                outcome = self._awaited(timeout)
                if not outcome.success:
                    self._consume(outcome.items)
                    raise outcome.value
                self._part.extend(outcome.value)
            value = self._part.popleft()
            self._consume(1)
        if self._consumed >= self._fill_at and not self._threaded:
            self._fill()
        return value

    def next_outcome(self) -> Outcome:
        """What came of the next task, whether it is an error or not."""
        with self._lock:
            outcome = self._awaited(None)
            self._consume(outcome.items)
        if not self._threaded:
            self._fill()
        return outcome

    def _consume(self, items: int) -> None:
        self._consumed += items
        if self._threaded:
            self._changed.notify_all()

    def _awaited(self, timeout: float | None) -> Outcome:
        if not self._ready:
            if not self._changed.wait_for(self._has_next, timeout):
                raise PoolTimeout
            if not self._ready:
                raise StopIteration
        return self._ready.popleft()

    def _has_next(self) -> bool:
        return bool(self._ready) or (self._exhausted and not self._open)

    def bundle(self, nanoseconds: int) -> None:
        """Have so much work travel together: nobody waits for one of the results.

        Doing a task twice must do no harm.
        """
        self._call.bundle_time = self._call.bundle_below = nanoseconds
        self._call.repeatable = True

    # -- the end

    def lift(self, *, discards: bool = False) -> None:
        """Have all that is left done, without waiting for anybody to ask for it."""
        with self._changed:
            self._ahead = sys.maxsize
            self._discards = discards
            self._changed.notify_all()
        if not self._threaded:
            self._fill()

    def stop(self, error: BaseException | None = None) -> None:
        """Take no more items."""
        with self._changed:
            if error is not None and not self._exhausted:
                self._ready.append(Outcome(self._tasks, 1, 0, False, error))
            self._exhausted = True
            self._changed.notify_all()
        self._engine.forget(self._call)
        self._settle()


class LazyResults:
    """What imap returns."""

    def __init__(self, feed: Feed, engine: Engine, pool: object) -> None:
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
