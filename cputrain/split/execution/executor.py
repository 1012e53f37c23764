"""Pinned threads, each with an OpenMP thread team on its own cores, that run jobs side by side.

OpenMP starts a thread's team from that thread, and the team inherits its affinity. So each thread
is pinned first and sets its number of threads; torch's work in it then stays on these cores.
`concurrent.futures` cannot run a job on a given thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections import deque
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue

import torch

from cputrain.runtime.root_forward import be_within
from cputrain.split.sync.barrier import BarrierAborted, ReplicaBarrier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, TypeVar

    from cputrain.machine import Cpus

    Job = Callable[[], Any]

    _T = TypeVar("_T")


INTERRUPT_TIMEOUT_S = 10.0
"""Seconds that Ctrl-C waits for native code, such as a backward, to end."""


class _ExecutorState(threading.local):
    """Whether this thread is computing a replica."""

    is_replica = False


_executor_state = _ExecutorState()


def is_replica_thread() -> bool:
    """Return whether this thread is computing a replica."""
    return _executor_state.is_replica


class Interrupted(BaseException):
    """Ctrl-C in a replica's thread: raised there as soon as it runs Python code again."""


class JobResults:
    """Results of a list of jobs.

    They stay here until read, so that none is lost if Ctrl-C interrupts the waiting thread.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._outcomes: dict[int, tuple[Any, BaseException | None]] = {}
        self.done = threading.Event()
        """Set once every job has ended."""

    def set_outcome(self, index: int, result: Any, error: BaseException | None) -> None:
        """Store the result or exception of one job."""
        self._outcomes[index] = (result, error)
        if len(self._outcomes) == self._count:
            self.done.set()

    def results(self) -> list[Any]:
        """Return the results in order, or raise the first error that is no BarrierAborted."""
        outcomes, self._outcomes = self._outcomes, {}
        errors = {index: error for index, (_, error) in outcomes.items() if error is not None}
        if not errors:
            return [outcomes[index][0] for index in range(self._count)]
        first = min(errors, key=lambda index: (isinstance(errors[index], BarrierAborted), index))
        try:
            raise errors[first]
        finally:  # the error keeps this frame alive: free the other outcomes now
            outcomes.clear()
            errors.clear()


class ReplicaThread:
    """One pinned thread with a queue of jobs."""

    def __init__(self, number: int, cores: Sequence[Cpus]) -> None:
        self.number = number
        self._cores = cores
        self._jobs: SimpleQueue[tuple[int, Job, JobResults] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._is_running = False
        self._is_interrupted = False
        self.thread = threading.Thread(
            target=self._run, name=f"cputrain-replica-{number}", daemon=True
        )
        self.thread.start()

    def submit(self, index: int, job: Job, results: JobResults) -> None:
        """Queue a job, whose outcome goes to `results` under this index."""
        self._jobs.put((index, job, results))

    def stop(self) -> None:
        """End the thread once its queue is empty."""
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Raise Interrupted in the job that is running, if any."""
        with self._guard:
            if self._is_running:
                self._is_interrupted = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(Interrupted)
                )

    def _run(self) -> None:
        _executor_state.is_replica = True
        be_within()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {cpu for core in self._cores for cpu in core})
        torch.get_num_threads()  # a thread's first operator would reset its number of threads
        torch.set_num_threads(len(self._cores))
        while (submitted := self._jobs.get()) is not None:
            index, job, results = submitted
            results.set_outcome(index, *self._run_job(job))
            del job, results, submitted  # keep nothing alive while waiting for the next job

    def _run_job(self, job: Job) -> tuple[Any, BaseException | None]:
        """Run a job and return its outcome; an interrupt arrives within this call or not at all."""
        result, error = None, None
        try:
            self._is_running = True
            result = job()
        except BaseException as caught:  # (raised again in the caller)
            error = caught
        try:
            with self._guard:
                self._is_running = False
            if self._is_interrupted and not isinstance(error, Interrupted):
                for _ in range(20):  # the exception is pending, and must not arrive later
                    time.sleep(0.001)
        except Interrupted as late:
            error = error or late
        self._is_running = self._is_interrupted = False
        try:
            return result, error
        finally:  # an error keeps this frame alive
            del job, result, error


class Executor:
    """A fixed number of replica threads, which run one list of jobs at a time."""

    def __init__(self, places: Sequence[Sequence[Cpus]]) -> None:
        num_threads = torch.get_num_threads()
        self.threads = [ReplicaThread(number, cores) for number, cores in enumerate(places)]
        self._lock = threading.Lock()
        weakref.finalize(self, _stop_threads, self.threads, os.getpid())
        self.run([_no_op] * len(self.threads))
        # set_num_threads in a thread also sets the default of threads that start later
        torch.set_num_threads(num_threads)

    def run(
        self,
        jobs: Sequence[Job],
        barrier: ReplicaBarrier | None = None,
        caller_index: int | None = None,
    ) -> list[Any]:
        """Run the jobs side by side, one for each thread, and return their results.

        The caller runs the job at `caller_index` itself. An error in one job aborts the others at
        the barrier and is raised here.
        """
        return self._run(self.threads[: len(jobs)], jobs, barrier, caller_index)

    def run_in_turns(
        self, jobs: Sequence[Job], barrier: ReplicaBarrier, num_at_once: int
    ) -> list[Any]:
        """Run the jobs in order, some of them at a time, and return their results.

        A thread runs one job after the other. Another thread begins where one waits at the barrier.
        """
        return self._run_in_turns(self.threads[: len(jobs)], jobs, barrier, num_at_once)

    def some(self, indices: Sequence[int]) -> ExecutorSubset:
        """Return an executor of some of these threads."""
        return ExecutorSubset(self, indices)

    def _run_in_turns(
        self,
        replica_threads: Sequence[ReplicaThread],
        jobs: Sequence[Job],
        barrier: ReplicaBarrier,
        num_at_once: int,
    ) -> list[Any]:
        results = JobResults(len(jobs))
        waiting = deque((index, partial(copy_context().run, job)) for index, job in enumerate(jobs))
        idle = deque(replica_threads)

        def run_all() -> None:
            while (entry := _next_of(waiting)) is not None:
                index, job = entry
                results.set_outcome(index, *_outcome_of(job))
                del job, entry  # keep nothing alive while waiting for the next call

        def begin() -> None:
            if waiting and (thread := _next_of(idle)) is not None:
                thread.submit(0, run_all, JobResults(1))

        barrier.on_wait = begin
        with self._lock:
            try:
                for _ in range(num_at_once):
                    begin()
                results.done.wait()
            except BaseException:  # Ctrl-C
                waiting.clear()
                self._abort_jobs(barrier)
                raise
        return results.results()

    def _run(
        self,
        replica_threads: Sequence[ReplicaThread],
        jobs: Sequence[Job],
        barrier: ReplicaBarrier | None,
        caller_index: int | None,
    ) -> list[Any]:
        results = JobResults(len(jobs))
        with self._lock:
            try:
                for index, (thread, job) in enumerate(zip(replica_threads, jobs, strict=True)):
                    if index != caller_index:
                        thread.submit(index, partial(copy_context().run, job), results)
                if caller_index is not None:
                    results.set_outcome(caller_index, *_run_in_caller(jobs[caller_index]))
                results.done.wait()
            except BaseException:  # Ctrl-C
                self._abort_jobs(barrier)
                raise
        return results.results()

    def _abort_jobs(self, barrier: ReplicaBarrier | None) -> None:
        """Abort the barrier, interrupt all threads and wait until they are idle."""
        if barrier is not None:
            barrier.abort()
        results = JobResults(len(self.threads))
        for thread in self.threads:
            thread.interrupt()
            thread.submit(thread.number, _no_op, results)
        results.done.wait(INTERRUPT_TIMEOUT_S)


class ExecutorSubset:
    """Some threads of an executor."""

    def __init__(self, executor: Executor, indices: Sequence[int]) -> None:
        self._executor = executor
        self._threads = [executor.threads[index] for index in indices]

    def run(
        self,
        jobs: Sequence[Job],
        barrier: ReplicaBarrier | None = None,
        caller_index: int | None = None,
    ) -> list[Any]:
        """Run one job for each of these threads and return their results."""
        return self._executor._run(self._threads[: len(jobs)], jobs, barrier, caller_index)

    def run_in_turns(
        self, jobs: Sequence[Job], barrier: ReplicaBarrier, num_at_once: int
    ) -> list[Any]:
        """Run the jobs in order, some of them at a time, and return their results."""
        return self._executor._run_in_turns(self._threads[: len(jobs)], jobs, barrier, num_at_once)

    def some(self, indices: Sequence[int]) -> ExecutorSubset:
        """Return an executor of some of these threads."""
        return ExecutorSubset(self._executor, [self._threads[index].number for index in indices])


class InlineExecutor:
    """Runs jobs in the caller's thread."""

    def run(
        self,
        jobs: Sequence[Job],
        _barrier: ReplicaBarrier | None = None,
        _caller_index: int | None = None,
    ) -> list[Any]:
        """Run the jobs one after the other and return their results."""
        return [job() for job in jobs]

    def run_in_turns(
        self, jobs: Sequence[Job], _barrier: ReplicaBarrier, _num_at_once: int
    ) -> list[Any]:
        """Run the jobs one after the other and return their results."""
        return [job() for job in jobs]

    def some(self, _indices: Sequence[int]) -> InlineExecutor:
        """Return this executor."""
        return self


def _next_of(entries: deque[_T]) -> _T | None:
    """Take the first entry; None if other threads have taken all."""
    try:
        return entries.popleft()
    except IndexError:
        return None


def _outcome_of(job: Job) -> tuple[Any, BaseException | None]:
    """Run a job; return its outcome."""
    try:
        return job(), None
    except BaseException as caught:  # (raised again in the caller)
        return None, caught


def _run_in_caller(job: Job) -> tuple[Any, BaseException | None]:
    """Run a job in the caller's thread, marked as a replica; return its outcome."""
    _executor_state.is_replica = True
    try:
        return job(), None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as caught:  # (raised again when the other jobs have ended)
        return None, caught
    finally:
        _executor_state.is_replica = False


def _no_op() -> None:
    """Do nothing: a thread's first job, after which it is pinned."""


_executors: weakref.WeakValueDictionary[tuple[int, tuple[Any, ...]], Executor] = (
    weakref.WeakValueDictionary()
)


def executor_on(places: Sequence[tuple[Cpus, ...]]) -> Executor:
    """Return the executor on these cores; start it if there is none."""
    key = (os.getpid(), tuple(places))
    executor = _executors.get(key)
    if executor is None:
        executor = _executors[key] = Executor(places)
    return executor


def _stop_threads(replica_threads: Sequence[ReplicaThread], owner: int) -> None:
    """Stop the threads when their executor is garbage-collected."""
    if owner == os.getpid():  # threads are not forked
        for thread in replica_threads:
            thread.stop()
