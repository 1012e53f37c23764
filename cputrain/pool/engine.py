"""The pool's engine: a thread that sends tasks, receives results and replaces exited workers.

The engine never blocks on a worker and shares no lock with workers. All workers read one pipe of
task packets; each worker writes results to its own pipe, so a killed worker breaks only its own.
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
from cputrain.pool.dispatch import Dispatch
from cputrain.pool.events import OnceEvent
from cputrain.pool.outcomes import (
    describe,
    initializer_error,
    outcome_of,
    result_lost_error,
    task_lost_error,
    terminated_error,
)
from cputrain.pool.packets import PacketPayload, ResultPacket, Status
from cputrain.pool.prefetch import Prefetcher
from cputrain.pool.supervisor import Supervisor
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

    from cputrain.pool.slots import WorkerState
    from cputrain.pool.tasks import Call, Task
    from cputrain.pool.worker import WorkerSetup
    from cputrain.pool.workers import PoolWorker

_BUNDLE_PATIENCE_S = 0.02
"""Seconds that an item of a bundle may take before the rest goes to another worker."""

_START_RETRY_S = 0.5
"""Seconds until a start that the system refused is tried again."""

_MAX_POLL_S = 3600.0
"""Longest poll timeout in seconds; poll() overflows after some weeks."""


class Engine:
    """Runs tasks on worker processes until it is closed."""

    _all: weakref.WeakSet[Engine] = weakref.WeakSet()

    def __init__(
        self,
        num_workers: int,
        process_class: Callable[..., Any],
        setup: WorkerSetup,
        starting_context: Callable[[], Any],
    ) -> None:
        self.num_workers = num_workers
        self.calls: dict[int, Any] = _Calls(self)
        """Results that are not complete, by job number."""
        self._closing = False
        self._terminated = False
        self._retry_start_at_s = 0.0
        self._is_over = False
        """Whether no task is sent any more."""
        self._thread: threading.Thread | None = None
        self._has_ended = OnceEvent()
        """Set when all workers have ended, and all descriptors have been closed."""
        self._broken_error: CputrainError | None = None
        """The error that all tasks get, if no worker can be started."""
        self._actions: deque[Callable[[], None]] = deque()
        self._callbacks = Callbacks()
        self._owner_pid = os.getpid()
        self._dispatch = Dispatch(num_workers, _weak_callback(self._on_send_failure))
        self.supervisor = Supervisor(
            num_workers,
            process_class,
            setup,
            starting_context,
            self._dispatch.pipe,
            self._dispatch.arguments,
        )
        wake_read, wake = pipe(os.O_NONBLOCK, of="a pool")
        self._wake_read, self._wake = End(wake_read), End(wake)
        self.supervisor.register_fd(wake_read)
        Engine._all.add(self)

    @property
    def is_ours(self) -> bool:
        """Whether this process made the engine, rather than inherited it by a fork."""
        return os.getpid() == self._owner_pid

    # -- called by Pool

    def start(self) -> None:
        """Start the workers and the thread; if either fails, leave neither running."""
        setup = self.supervisor.setup
        if not setup.forked and setup.initializer is not None:
            self.supervisor.setup = self._pack_setup(setup)
        self._thread = threading.Thread(target=self._run, name="cputrain pool", daemon=True)
        # forks take milliseconds; a fork server may have to import torch first
        with deferred_signals() if setup.forked else nullcontext():
            try:
                self.supervisor.start()
                with deferred_signals():
                    start_thread(self._thread, "a pool")
            except BaseException:
                with deferred_signals():
                    self._abandon()
                raise

    def _abandon(self) -> None:
        """End the workers and close all descriptors after a failed start."""
        if self._thread is not None and self._thread.ident is not None:
            return  # an interrupt after the thread's start: the pool is terminated instead
        self._thread = None
        try:
            self.supervisor.abandon()
        finally:
            self._close_ends()
            self._has_ended.set()

    def _pack_setup(self, setup: WorkerSetup) -> WorkerSetup:
        """Pack the initializer once into shared memory, which every worker reads."""
        writer = self._dispatch.writer
        try:
            shared: list[torch.UntypedStorage] = []
            payload, can_resend = packed((setup.initializer, setup.initargs), writer, shared)
        except Exception:  # locks and the like can be pickled only while a process starts
            return setup
        if not can_resend:
            writer.release(tokens_of(payload.blocks))
            return setup
        self._unpacked_setup = setup, shared  # keeps alive the storages that later workers may open
        block = writer.lend(memoryview(payload.data))
        return setup._replace(
            initializer=None, initargs=(), packed=PacketPayload(b"", [*payload.blocks, block])
        )

    def submit(self, call: Call, tasks: list[Task], *, complete: bool) -> None:
        """Queue tasks of a call, in this order; `complete` if they are the call's last tasks."""
        call.add_submitted(len(tasks), complete=complete)
        is_sent = self._dispatch.enqueue(tasks)
        if self._is_over or self._broken_error is not None:
            self._fail_all(self._broken_error or terminated_error())
        elif not is_sent or self._dispatch.num_timed or self._dispatch.num_bundles:
            self.wake()  # there is something to send, or a timeout to watch

    def begin(self, make: Callable[[], tuple[Call, list[Task]]]) -> None:
        """Submit all tasks of a call, packed now as far as memory for packed tasks allows.

        If an interrupt comes while tasks are packed, the rest are submitted all the same.
        """
        call: Call | None = None
        tasks: list[Task] = []
        num_submitted = 0
        try:
            with deferred_signals():
                call, tasks = make()
                if call.is_quick(tasks):
                    if len(tasks) == 1:
                        self._dispatch.prepare(tasks[0], must_pack=False)
                    quick_call, call = call, None
                    self.submit(quick_call, tasks, complete=True)
                    return
            if len(tasks) == 1:
                self._dispatch.prepare(tasks[0], must_pack=False)
                return
            size = 0
            with call.frozen_buffers():
                for count, task in enumerate(tasks, 1):
                    if not self._dispatch.prepare(task, must_pack=False):
                        return
                    size += task.prepared_bytes
                    if size >= SUBMITTED_BYTES or count - num_submitted >= SUBMITTED_TOGETHER:
                        with deferred_signals():
                            self.submit(call, tasks[num_submitted:count], complete=False)
                            num_submitted, size = count, 0
        finally:
            if call is not None:
                with deferred_signals():
                    if num_submitted < len(tasks):
                        self.submit(call, tasks[num_submitted:], complete=True)
                    else:
                        self.complete(call)

    def do(self, action: Callable[[], None]) -> None:
        """Have the engine's thread call `action`; safe in any thread and in finalizers."""
        self._actions.append(action)
        self.wake()

    def wake(self) -> None:
        """Wake the engine's thread from poll()."""
        try:
            os.write(self._wake.fileno(), b"\0")
        except OSError:  # the pipe is full (a wake-up is pending), or the thread has ended
            return

    def complete(self, call: Call) -> None:
        """Record that no more tasks of this call follow."""
        call.add_submitted(0, complete=True)
        call.add_ended(0, self._dispatch.writer)

    def prepare(self, task: Task, *, must_pack: bool) -> bool:
        """Pack a task's function and arguments now; return False if memory is used up."""
        return self._dispatch.prepare(task, must_pack=must_pack)

    def freeze_function(self, call: Call) -> PacketPayload | None:
        """Pack a call's function as it is now; return it if it is small."""
        return call.freeze_function(self._dispatch.writer)

    def discard(self, task: Task) -> None:
        """Release a task that was prepared and will not be submitted."""
        self._dispatch.discard(task)

    def forget(self, call: Call) -> None:
        """Drop a call whose results are not wanted any more: unsent tasks are not run."""
        call.is_over = True
        self.complete(call)
        self.wake()

    def start_missing(self) -> None:
        """Start workers in place of those that have exited."""
        with self._dispatch.lock:
            self.supervisor.start()
        self.wake()

    def close(self) -> None:
        """Let the engine end when all submitted tasks are done."""
        self._closing = True
        self.wake()

    def join(self) -> None:
        """Wait until all tasks are done, lazy ones included, and all workers have exited."""
        for result in list(self.calls.values()):
            if isinstance(result, Prefetcher):
                result.run_remaining()
        self._join_thread()

    def terminate(self) -> None:
        """Terminate all workers and wait until they have exited."""
        if not self.is_ours:
            return
        self.end_soon()
        self._join_thread()

    def _join_thread(self) -> None:
        """Wait for the engine's thread to end."""
        thread = self._thread
        if thread is None or threading.current_thread() is thread:
            return
        # not Thread.join alone: after an interrupt, it takes the thread for ended
        self._has_ended.wait()
        thread.join()

    def end_soon(self) -> None:
        """Have the engine's thread terminate all workers; called by finalizers, too, in any thread.

        So it does not block, unless the interpreter is exiting.
        """
        if not self.is_ours:
            return
        self._terminated = True
        self.wake()
        if util.is_exiting():
            self._join_thread()

    # -- the thread

    def _run(self) -> None:
        """Run the engine's thread until the pool is done."""
        try:
            while not self._is_done():
                self._run_once()
        except BaseException as error:
            self._broken_error = InternalError("a pool", "must not fail", found=describe(error))
            self._broken_error.__cause__ = error
            raise
        finally:
            try:
                self._shut_down()
            finally:
                self._callbacks.stop()
                self._close_ends()
                self._has_ended.set()

    def _is_done(self) -> bool:
        """Return whether the pool is terminated, or closed and out of tasks."""
        if self._terminated:
            return True
        return self._closing and not self.calls and self._dispatch.is_empty

    def _run_once(self) -> None:
        """Poll once, handle what is ready, and send tasks."""
        readable, exited, other_fds = self.supervisor.wait(self._poll_timeout_ms())
        for fd in other_fds:
            os.read(fd, 1 << 12)
        for worker in readable:
            self._receive(worker)
        for worker in exited:
            self._handle_exit(worker)
        while self._actions:
            self._actions.popleft()()
        recover_at_s = self._dispatch.recover_lost_at_s
        if recover_at_s is not None and time.monotonic() >= recover_at_s:
            self._dispatch.recover_lost(self.supervisor.all_workers)
        if self._dispatch.num_timed:
            self._kill_overdue()
        if self._dispatch.num_bundles:
            self._rebalance_bundles()
        if (
            self._broken_error is None
            and not self._terminated
            and (self.calls or not self._closing)
        ):
            self._replace_exited()
        self._dispatch.send()

    def _poll_timeout_ms(self) -> float | None:
        """Return the milliseconds until the next timeout, or None if there is none."""
        now_s = time.monotonic()
        timeouts_s = []
        if self._dispatch.recover_lost_at_s is not None:
            timeouts_s.append(self._dispatch.recover_lost_at_s - now_s)
        if self._retry_start_at_s > now_s:
            timeouts_s.append(self._retry_start_at_s - now_s)
        if self._dispatch.num_bundles:
            timeouts_s.append(_BUNDLE_PATIENCE_S)
        if self._dispatch.num_timed:
            with self._dispatch.lock:
                tasks = self._dispatch.sent
                time_limits_s = [task.call.timeout for task in tasks.values()]
                timeouts_s += [
                    time_limit_s for time_limit_s in time_limits_s if time_limit_s is not None
                ]
                for state in self._worker_states():
                    time_limit_s = (
                        tasks[state.ticket].call.timeout if state.ticket in tasks else None
                    )
                    if time_limit_s is not None:
                        timeouts_s.append(state.since_ns / 1e9 + time_limit_s - now_s)
        return min(max(0.0, min(timeouts_s)), _MAX_POLL_S) * 1e3 + 1 if timeouts_s else None

    def _worker_states(self) -> list[WorkerState]:
        """Return what each worker is running."""
        return [worker.slot.read() for worker in self.supervisor.workers]

    def _replace_exited(self) -> None:
        """Start workers in place of exited ones; fail all tasks if none can be started."""
        is_short = len(self.supervisor.workers) < self.num_workers
        start_error = self.supervisor.drop_refused()
        if len(self.supervisor.workers) < self.num_workers and not is_short:
            self._retry_start_at_s = time.monotonic() + _START_RETRY_S
        if time.monotonic() < self._retry_start_at_s:
            return
        try:
            if len(self.supervisor.workers) < self.num_workers and start_error is None:
                self.start_missing()
        except OSError as error:
            self._retry_start_at_s = time.monotonic() + _START_RETRY_S
            start_error = error if not self.supervisor.workers else None
        if start_error is not None:
            broken = ResourceError.of(start_error, "a pool's worker", "was not started")
            broken.__cause__ = start_error
            self._fail_all(broken)

    def _kill_overdue(self) -> None:
        """Kill workers whose task has exceeded its timeout."""
        now_ns = time.monotonic_ns()
        for worker, state in zip(self.supervisor.workers, self._worker_states(), strict=True):
            with self._dispatch.lock:
                task = self._dispatch.sent.get(state.ticket)
            if task is None or task.call.timeout is None or worker.killed_ticket:
                continue
            if now_ns - state.since_ns > task.call.timeout * 1e9:
                worker.killed_ticket = state.ticket
                worker.process.kill()

    def _rebalance_bundles(self) -> None:
        """Take back a bundle's items that wait behind a slow item while another worker is idle.

        The slow item may even depend on one of them, through a side effect.
        """
        now_ns, patience_ns = time.monotonic_ns(), _BUNDLE_PATIENCE_S * 1e9
        states = self._worker_states()
        if self._dispatch.has_waiting or all(state.ticket for state in states):
            return
        for worker, state in zip(self.supervisor.workers, states, strict=True):
            bundle = self._dispatch.sent.get(state.ticket)
            if not isinstance(bundle, Bundle) or now_ns - state.since_ns < patience_ns:
                continue
            if bundle.revoked is None or bundle.revoked[1] != state.item:
                worker.slot.limit(state.ticket, state.item + 1)
                bundle.revoked = now_ns, state.item
            elif now_ns - bundle.revoked[0] > patience_ns:
                # still at the same item: the worker reads the limit before it begins the next
                self._dispatch.requeue(bundle.cut(state.item + 1))

    # -- results

    def _receive(self, worker: PoolWorker) -> None:
        """Read and handle the messages in a worker's inbox."""
        for message in worker.inbox.receive():
            self._handle_result(worker, ResultPacket.decode(message))
        if worker.inbox.is_at_end and self.supervisor.on_inbox_closed(worker):
            self._dispatch.look_for_lost(self.supervisor.all_workers)

    def _handle_result(self, worker: PoolWorker, packet: ResultPacket) -> None:
        """Act on one message of a worker."""
        if packet.status is Status.READY:
            self.supervisor.is_ready(worker, packet.ticket)
            return
        if packet.status is Status.BYE:
            worker.is_exiting = True
            return
        leases = worker.reader.lease(packet.result.blocks)
        if packet.status is Status.NOT_SET_UP:
            worker.is_exiting = True
            _, cause = outcome_of(packet.status, packet.result.data, leases)
            self._fail_all(initializer_error(cause))
            return
        task = self._dispatch.settle_result(worker, packet)
        if packet.last:
            self.supervisor.mark_exiting(worker)
        if isinstance(task, Bundle) and packet.status is Status.DONE:
            self._finish_bundle(task, packet.result.data, leases)
        elif task is not None:
            success, value = outcome_of(packet.status, packet.result.data, leases)
            del leases
            for member in task.members():
                self._finish([member], success, value)
            del value
        worker.return_blocks()

    def _finish_bundle(self, bundle: Bundle, data: bytes | memoryview, leases: list[Any]) -> None:
        """Deliver the outcome of each task of a bundle; requeue tasks that were not begun."""
        outcomes = pickle.loads(data)
        self._dispatch.requeue(bundle.cut(len(outcomes)))
        first_block = 0
        tasks: list[Task] = []
        values: list[Any] = []
        for task, outcome in zip(bundle.members(), outcomes, strict=False):
            if type(outcome) is not tuple:  # an atom
                tasks.append(task)
                values.append(outcome)
                continue
            status, pickled, num_blocks = outcome
            buffers = leases[first_block : first_block + num_blocks]
            first_block += num_blocks
            success, value = outcome_of(status, pickled, buffers)
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
        """Deliver the outcome of tasks of one call: a list of results, or one error for all."""
        result = tasks[0].call.result
        self._dispatch.end(tasks)
        if isinstance(result, Prefetcher):
            result.deliver([task.index for task in tasks], success, value)
            return
        (task,) = tasks
        if result is None:  # the pool was terminated while the task was being sent
            return
        if self._terminated:
            result._callback = result._error_callback = None
        if result._callback or result._error_callback:
            self._callbacks.put(partial(result._set, task.index, (success, value)))
        else:
            result._set(task.index, (success, value))

    def _on_send_failure(self, task: Task, error: BaseException) -> None:
        """Have the engine's thread finish a task that cannot be sent."""
        self.do(lambda: self._finish([task], False, error))

    # -- exits

    def _handle_exit(self, worker: PoolWorker) -> None:
        """Reap an exited worker and settle the task it was running."""
        self._receive(worker)
        state = worker.slot.read()
        exit_reason = self.supervisor.reap(worker)
        self._dispatch.writer.release(list(worker.held_blocks))
        task = self._dispatch.sent.get(state.ticket)
        if task is not None:
            self._handle_task_of_exited(task, worker, state, exit_reason)
        elif not worker.is_exiting:
            self._dispatch.look_for_lost(self.supervisor.all_workers)
        error = self.supervisor.is_crash_looping(exit_reason)
        if error is not None:
            self._fail_all(error)

    def _handle_task_of_exited(
        self, task: Task, worker: PoolWorker, state: WorkerState, exit_reason: str
    ) -> None:
        """Requeue the task that an exited worker was running, or finish it with an error."""
        self._dispatch.remove_sent(task)
        if worker.killed_ticket and worker.killed_ticket != state.ticket:
            # the worker began it just before it was killed for another task's timeout
            self._dispatch.requeue([task])
            return
        item = state.item
        if isinstance(task, Bundle):
            # items before this one had run, but their results have not been sent
            self._dispatch.requeue(task.cut(item + 1))
            with self._dispatch.lock:
                task.release(self._dispatch.writer)
            item = 0
        culprit = task.members()[-1]
        for member in task.members():
            if member.call.repeatable and member is not culprit:
                self._dispatch.requeue([member])
                continue
            member.attempts += 1
            if member.attempts <= member.call.retries:
                self._dispatch.requeue([member])
            elif member is culprit:
                task_error = task_lost_error(
                    member, item, exit_reason, killed=bool(worker.killed_ticket)
                )
                self._finish([member], False, task_error)
            else:
                self._finish([member], False, result_lost_error(member, culprit, exit_reason))

    def _fail_all(self, error: CputrainError) -> None:
        """Finish all tasks with an error."""
        if not self._is_over:
            self._broken_error = error
        for task in self._dispatch.clear():
            self._finish([task], False, error)

    def _shut_down(self) -> None:
        """End the workers and fail what is left."""
        if not self._terminated and self._broken_error is None:
            self._dispatch.stop(len(self.supervisor.workers))
        self._dispatch.close_write()
        self.supervisor.end(is_immediate=lambda: self._terminated or self._broken_error is not None)
        self._terminated = self._is_over = True
        self._fail_all(self._broken_error or terminated_error())
        while self._actions:
            self._actions.popleft()()
        for result in list(self.calls.values()):
            if isinstance(result, Prefetcher):
                result.stop(self._broken_error)

    def _close_ends(self) -> None:
        """Close all pipes and memory of the pool."""
        self.supervisor.close()
        self._dispatch.close()
        self._wake.close()
        self._wake_read.close()

    def close_in_child(self) -> None:
        """Close descriptors in a forked child, so that each end of a pipe sees the other close."""
        if not self.is_ours:
            self.supervisor.close_in_child()
            self._dispatch.close_in_child()


def _weak_callback(method: Callable[..., None]) -> Callable[..., None]:
    """Return a function that calls a method through a weak reference to its object.

    So a pool's memory and pipes are freed as soon as the last reference to the pool is dropped.
    """
    reference = weakref.WeakMethod(method)

    def call(*args: Any) -> None:
        bound_method = reference()
        if bound_method is not None:
            bound_method(*args)

    return call


class _Calls(dict[int, Any]):
    """Unfinished results; wakes the engine, which may wait for that, when the last is removed."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = weakref.ref(engine)

    def __delitem__(self, job: int) -> None:
        super().__delitem__(job)
        engine = self._engine()
        if not self and engine is not None:
            engine.wake()


def _close_all() -> None:
    """Close the descriptors of all engines in a forked child."""
    for engine in list(Engine._all):
        engine.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)
