"""The thread behind a pool: tasks go out, results come in, workers that end are replaced.

Nothing here waits for a worker, and no lock is shared with one. All workers read one pipe of
packets; each has a pipe of its own for results, so one that is killed cuts off nobody but itself.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
import weakref
from collections import deque
from contextlib import nullcontext
from functools import partial
from multiprocessing import util
from typing import TYPE_CHECKING, Any

from cputrain.errors import CputrainError, InternalError, ResourceError
from cputrain.ipc import End, deferred_signals, pipe, start_thread
from cputrain.pool.callbacks import Callbacks
from cputrain.pool.crew import Crew
from cputrain.pool.dispatch import Dispatch
from cputrain.pool.events import OnceEvent
from cputrain.pool.outcomes import fate_of, lost_with, not_set_up, outcome_of, said, terminated
from cputrain.pool.packets import Part, ResultPacket, Status
from cputrain.pool.prefetch import Prefetcher
from cputrain.pool.tasks import (
    SUBMITTED_BYTES,
    SUBMITTED_TOGETHER,
    Bundle,
    packed,
    tokens_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from cputrain.pool.slots import Doing
    from cputrain.pool.tasks import Call, Task
    from cputrain.pool.worker import Setup
    from cputrain.pool.workers import Worker

_PATIENCE = 0.02
"""Seconds that an item of a bundle may take before the others are given to somebody else."""

_PAUSE = 0.5
"""Seconds until a worker is asked for again that the system has refused."""

_LONG = 3600.0
"""Seconds; the system's clock for waiting takes no more than some weeks."""


class Engine:
    """Runs tasks on workers, until it is closed."""

    _all: weakref.WeakSet[Engine] = weakref.WeakSet()

    def __init__(
        self,
        processes: int,
        process: Callable[..., Any],
        setup: Setup,
        starting: Callable[[], Any],
    ) -> None:
        self.processes = processes
        self.calls: dict[int, Any] = _Calls(self)
        """Results that are not complete, by the number of their call."""
        self._closing = False
        self._terminated = False
        self._start_again_at = 0.0
        self._over = False
        """Nothing is sent any more."""
        self._thread: threading.Thread | None = None
        self._has_ended = OnceEvent()
        """Set when all workers have ended, and all descriptors have been closed."""
        self._broken: CputrainError | None = None
        """Why no worker can be started."""
        self._asked: deque[Callable[[], None]] = deque()
        self._callbacks = Callbacks()
        self._owner = os.getpid()
        self._dispatch = Dispatch(processes, _weakly(self._cannot_be_sent))
        self.crew = Crew(
            processes, process, setup, starting, self._dispatch.pipe, self._dispatch.arguments
        )
        wake_read, wake = pipe(os.O_NONBLOCK, of="a pool")
        self._wake_read, self._wake = End(wake_read), End(wake)
        self.crew.listen_to(wake_read)
        Engine._all.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process made it."""
        return os.getpid() == self._owner

    # -- what a pool asks for

    def start(self) -> None:
        """Start the workers, and the thread; if either fails, nothing is left."""
        setup = self.crew.setup
        if not setup.forked and setup.initializer is not None:
            self.crew.setup = self._packed(setup)
        self._thread = threading.Thread(target=self._run, name="cputrain pool", daemon=True)
        # forks take milliseconds; a fork server may have to import torch first
        with deferred_signals() if setup.forked else nullcontext():
            try:
                self.crew.start()
                with deferred_signals():
                    start_thread(self._thread, "a pool")
            except BaseException:
                with deferred_signals():
                    self._abandon()
                raise

    def _abandon(self) -> None:
        if self._thread is not None and self._thread.ident is not None:
            return  # an interrupt when all had been started: the pool is terminated
        self._thread = None
        try:
            self.crew.abandon()
        finally:
            self._close_ends()
            self._has_ended.set()

    def _packed(self, setup: Setup) -> Setup:
        """Have all workers read the same, instead of one after the other its own."""
        writer = self._dispatch.writer
        try:
            shared: list[torch.UntypedStorage] = []
            part, lasts = packed((setup.initializer, setup.initargs), writer, shared)
        except Exception:  # what only a process's start can share, as locks, says so itself
            return setup
        if not lasts:
            writer.give_back(tokens_of(part.lent))
            return setup
        self._original = setup, shared  # holds what workers that start later may open
        block = writer.lend(memoryview(part.data))
        return setup._replace(initializer=None, initargs=(), packed=Part(b"", [*part.lent, block]))

    def submit(self, call: Call, tasks: list[Task], *, complete: bool) -> None:
        """Have tasks of a call done, in this order; `complete` if no more of it follow."""
        call.begun(len(tasks), complete=complete)
        sent = self._dispatch.add(tasks)
        if self._over or self._broken is not None:
            self._break(self._broken or terminated())
        elif not sent or self._dispatch.timed or self._dispatch.bundles:
            self.wake()  # there is something to send, or to wait for that no worker tells of

    def begin(self, make: Callable[[], tuple[Call, list[Task]]]) -> None:
        """Have a whole call done; its tasks are packed now, as far as memory for that allows.

        An interrupt while they are packed leaves none behind of which the pool does not know.
        """
        call: Call | None = None
        tasks: list[Task] = []
        begun = 0
        try:
            with deferred_signals():
                call, tasks = make()
                if call.is_quick(tasks):
                    if len(tasks) == 1:
                        self._dispatch.prepare(tasks[0], now=False)
                    whole, call = call, None
                    self.submit(whole, tasks, complete=True)
                    return
            if len(tasks) == 1:
                self._dispatch.prepare(tasks[0], now=False)
                return
            size = 0
            with call.one_moment():
                for count, task in enumerate(tasks, 1):
                    if not self._dispatch.prepare(task, now=False):
                        return
                    size += task.prepared_bytes
                    if size >= SUBMITTED_BYTES or count - begun >= SUBMITTED_TOGETHER:
                        with deferred_signals():
                            self.submit(call, tasks[begun:count], complete=False)
                            begun, size = count, 0
        finally:
            if call is not None:
                with deferred_signals():
                    if begun < len(tasks):
                        self.submit(call, tasks[begun:], complete=True)
                    else:
                        self.complete(call)

    def do(self, action: Callable[[], None]) -> None:
        """Have something done by the thread; can be asked for anywhere, by a finalizer too."""
        self._asked.append(action)
        self.wake()

    def wake(self) -> None:
        """Have the thread look at everything again."""
        try:
            os.write(self._wake.fileno(), b"\0")
        except OSError:  # it has been woken already, or it has ended
            return

    def complete(self, call: Call) -> None:
        """No more tasks of this call follow."""
        call.begun(0, complete=True)
        call.ended(0, self._dispatch.writer)

    def prepare(self, task: Task, *, now: bool) -> bool:
        """Pack what a task is given, as it is now; false if there is no memory for it."""
        return self._dispatch.prepare(task, now=now)

    def freeze_function(self, call: Call) -> Part | None:
        """Have a call send its function as it is now; return it if it is small."""
        return call.freeze_function(self._dispatch.writer)

    def discard(self, task: Task) -> None:
        """One that was prepared, and will not be submitted."""
        self._dispatch.discard(task)

    def forget(self, call: Call) -> None:
        """Nobody waits for what is still to come of a call: what has not been sent is lost."""
        call.over = True
        self.complete(call)
        self.wake()

    def start_missing(self) -> None:
        """Start workers in the place of those that have ended."""
        with self._dispatch.lock:
            self.crew.start()
        self.wake()

    def close(self) -> None:
        """Nothing more will be asked for."""
        self._closing = True
        self.wake()

    def join(self) -> None:
        """Wait until all has been done, asked for or not, and the workers have ended."""
        for result in list(self.calls.values()):
            if isinstance(result, Prefetcher):
                result.lift()
        self._join_thread()

    def terminate(self) -> None:
        """End everything now, and wait until it has ended."""
        if not self.is_ours:
            return
        self.end_soon()
        self._join_thread()

    def _join_thread(self) -> None:
        thread = self._thread
        if thread is None or threading.current_thread() is thread:
            return
        # not Thread.join alone: interrupted, it takes the thread for ended
        self._has_ended.wait()
        thread.join()

    def end_soon(self) -> None:
        """End everything; called by the collector, too, in whichever thread that runs.

        So it waits for nothing, unless the interpreter ends.
        """
        if not self.is_ours:
            return
        self._terminated = True
        self.wake()
        if util.is_exiting():
            self._join_thread()

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._turn()
        except BaseException as error:
            self._broken = InternalError("a pool", "must not fail", found=said(error))
            self._broken.__cause__ = error
            raise
        finally:
            try:
                self._end()
            finally:
                self._callbacks.end()
                self._close_ends()
                self._has_ended.set()

    def _is_done(self) -> bool:
        if self._terminated:
            return True
        return self._closing and not self.calls and self._dispatch.is_empty

    def _turn(self) -> None:
        say, ended, woken = self.crew.wait(self._until_next())
        for end in woken:
            os.read(end, 1 << 12)
        for worker in say:
            self._receive(worker)
        for worker in ended:
            self._ended(worker)
        while self._asked:
            self._asked.popleft()()
        lost = self._dispatch.look_again_at
        if lost is not None and time.monotonic() >= lost:
            self._dispatch.recover_lost(self.crew.everybody)
        if self._dispatch.timed:
            self._kill_overdue()
        if self._dispatch.bundles:
            self._share_bundles()
        if self._broken is None and not self._terminated and (self.calls or not self._closing):
            self._replace()
        self._dispatch.send()

    def _until_next(self) -> float | None:
        """Milliseconds until something must be looked at."""
        now = time.monotonic()
        times = []
        if self._dispatch.look_again_at is not None:
            times.append(self._dispatch.look_again_at - now)
        if self._start_again_at > now:
            times.append(self._start_again_at - now)
        if self._dispatch.bundles:
            times.append(_PATIENCE)
        if self._dispatch.timed:
            with self._dispatch.lock:
                tasks = self._dispatch.sent
                limits = [task.call.timeout for task in tasks.values()]
                times += [limit for limit in limits if limit is not None]
                for doing in self._doings():
                    limit = tasks[doing.ticket].call.timeout if doing.ticket in tasks else None
                    if limit is not None:
                        times.append(doing.since / 1e9 + limit - now)
        return min(max(0.0, min(times)), _LONG) * 1e3 + 1 if times else None

    def _doings(self) -> list[Doing]:
        return [worker.slot.read() for worker in self.crew.workers]

    def _replace(self) -> None:
        missing = len(self.crew.workers) < self.processes
        refused = self.crew.refused()
        if len(self.crew.workers) < self.processes and not missing:
            self._start_again_at = time.monotonic() + _PAUSE
        if time.monotonic() < self._start_again_at:
            return
        try:
            if len(self.crew.workers) < self.processes and refused is None:
                self.start_missing()
        except OSError as error:
            self._start_again_at = time.monotonic() + _PAUSE
            refused = error if not self.crew.workers else None
        if refused is not None:
            broken = ResourceError.of(refused, "a pool's worker", "was not started")
            broken.__cause__ = refused
            self._break(broken)

    def _kill_overdue(self) -> None:
        now = time.monotonic_ns()
        for worker, doing in zip(self.crew.workers, self._doings(), strict=True):
            with self._dispatch.lock:
                task = self._dispatch.sent.get(doing.ticket)
            if task is None or task.call.timeout is None or worker.killed_for:
                continue
            if now - doing.since > task.call.timeout * 1e9:
                worker.killed_for = doing.ticket
                worker.process.kill()

    def _share_bundles(self) -> None:
        """Take back what waits behind an item that takes long, while another worker has nothing.

        What is behind it may even be what it waits for.
        """
        now, patience = time.monotonic_ns(), _PATIENCE * 1e9
        doings = self._doings()
        if self._dispatch.has_waiting or all(doing.ticket for doing in doings):
            return
        for worker, doing in zip(self.crew.workers, doings, strict=True):
            bundle = self._dispatch.sent.get(doing.ticket)
            if not isinstance(bundle, Bundle) or now - doing.since < patience:
                continue
            if bundle.revoked is None or bundle.revoked[1] != doing.item:
                worker.slot.limit(doing.ticket, doing.item + 1)
                bundle.revoked = now, doing.item
            elif now - bundle.revoked[0] > patience:
                # it is still at the same item, so it will have seen the limit when that ends
                self._dispatch.again(bundle.cut(doing.item + 1))

    # -- results

    def _receive(self, worker: Worker) -> None:
        for message in worker.inbox.receive():
            self._take(worker, ResultPacket.decode(message))
        if worker.inbox.ended and self.crew.has_hung_up(worker):
            self._dispatch.look_for_lost(self.crew.everybody)

    def _take(self, worker: Worker, packet: ResultPacket) -> None:
        if packet.status is Status.READY:
            self.crew.is_ready(worker, packet.ticket)
            return
        if packet.status is Status.BYE:
            worker.leaving = True
            return
        leases = worker.reader.leases(packet.result.lent)
        if packet.status is Status.NOT_SET_UP:
            worker.leaving = True
            _, cause = outcome_of(packet.status, packet.result.data, leases)
            self._break(not_set_up(cause))
            return
        task = self._dispatch.settle(worker, packet)
        if packet.last:
            self.crew.leaves(worker)
        if isinstance(task, Bundle) and packet.status is Status.DONE:
            self._finish_each(task, packet.result.data, leases)
        elif task is not None:
            success, value = outcome_of(packet.status, packet.result.data, leases)
            del leases
            for one in task.each():
                self._finish([one], success, value)
            del value
        worker.give_back()

    def _finish_each(self, bundle: Bundle, data: bytes | memoryview, leases: list[Any]) -> None:
        """Tell what came of each task of a bundle; those that were not begun are sent again."""
        told = pickle.loads(data)
        self._dispatch.again(bundle.cut(len(told)))
        begin = 0
        tasks: list[Task] = []
        values: list[Any] = []
        for task, one in zip(bundle.each(), told, strict=False):
            if type(one) is not tuple:  # an atom
                tasks.append(task)
                values.append(one)
                continue
            status, own, count = one
            buffers = leases[begin : begin + count]
            begin += count
            success, value = outcome_of(status, own, buffers)
            del buffers
            if success:
                tasks.append(task)
                values.append(value)
            else:
                if tasks:
                    self._finish(tasks, True, values)
                tasks, values = [], []
                self._finish([task], False, value)
            del value
        if tasks:
            self._finish(tasks, True, values)

    def _finish(self, tasks: list[Task], success: bool, value: Any) -> None:
        """Tasks of one call: a list of all their results, or the error of each."""
        result = tasks[0].call.result
        self._dispatch.end(tasks)
        if isinstance(result, Prefetcher):
            result.set_each([task.index for task in tasks], success, value)
            return
        (task,) = tasks
        if self._terminated:
            result._callback = result._error_callback = None
        if result._callback or result._error_callback:
            self._callbacks.put(partial(result._set, task.index, (success, value)))
        else:
            result._set(task.index, (success, value))

    def _cannot_be_sent(self, task: Task, error: BaseException) -> None:
        self.do(lambda: self._finish([task], False, error))

    # -- ends

    def _ended(self, worker: Worker) -> None:
        """A worker's process has ended."""
        self._receive(worker)
        doing = worker.slot.read()
        how = self.crew.bury(worker)
        self._dispatch.writer.give_back(list(worker.kept))
        task = self._dispatch.sent.get(doing.ticket)
        if task is not None:
            self._died_with(task, worker, doing, how)
        elif not worker.leaving:
            self._dispatch.look_for_lost(self.crew.everybody)
        error = self.crew.hopeless(how)
        if error is not None:
            self._break(error)

    def _died_with(self, task: Task, worker: Worker, doing: Doing, how: str) -> None:
        self._dispatch.take_out(task)
        if worker.killed_for and worker.killed_for != doing.ticket:
            self._dispatch.again([task])  # it had just begun when the worker was killed for another
            return
        item = doing.item
        if isinstance(task, Bundle):
            # those before this item had ended, but nobody has been told how
            self._dispatch.again(task.cut(item + 1))
            with self._dispatch.lock:
                task.release(self._dispatch.writer)
            item = 0
        culprit = task.each()[-1]
        for one in task.each():
            if one.call.repeatable and one is not culprit:
                self._dispatch.again([one])
                continue
            one.attempts += 1
            if one.attempts <= one.call.retries:
                self._dispatch.again([one])
            elif one is culprit:
                fate = fate_of(one, item, how, killed=bool(worker.killed_for))
                self._finish([one], False, fate)
            else:
                self._finish([one], False, lost_with(one, culprit, how))

    def _break(self, error: CputrainError) -> None:
        """Nothing can be done any more."""
        if not self._over:
            self._broken = error
        for task in self._dispatch.clear():
            self._finish([task], False, error)

    def _end(self) -> None:
        if not self._terminated and self._broken is None:
            self._dispatch.stop(len(self.crew.workers))
        self._dispatch.close_write()
        self.crew.end(now=lambda: self._terminated or self._broken is not None)
        self._terminated = self._over = True
        self._break(self._broken or terminated())
        while self._asked:
            self._asked.popleft()()
        for result in list(self.calls.values()):
            if isinstance(result, Prefetcher):
                result.stop(self._broken)

    def _close_ends(self) -> None:
        self.crew.close()
        self._dispatch.close()
        self._wake.close()
        self._wake_read.close()

    def close_in_child(self) -> None:
        """In a process forked off the pool's: so that each side sees the other end."""
        if not self.is_ours:
            self.crew.close_in_child()
            self._dispatch.close_in_child()


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a method, and does not keep its object.

    So a pool's memory and pipes go in the moment in which nobody holds the pool any more.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        bound = reference()
        if bound is not None:
            bound(*args)

    return call


class _Calls(dict[int, Any]):
    """Tells the engine when there is none left: it may be waiting for that."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = weakref.ref(engine)

    def __delitem__(self, job: int) -> None:
        super().__delitem__(job)
        engine = self._engine()
        if not self and engine is not None:
            engine.wake()


def _close_all() -> None:
    for engine in list(Engine._all):
        engine.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
