"""Many: functions that train, run in processes beside one another, each on cores of its own."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from concurrent.futures import Executor, Future
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import torch

from cputrain.errors import UsageError, argument_error
from cputrain.ipc.interrupts import deferred_signals
from cputrain.machine import RootSource, read_machine
from cputrain.many.clusters import CoreCounter, workers_of
from cputrain.many.core_allocator import CoreAllocator, core_domains
from cputrain.many.cores_per_job import CoresPerJob, JobRate
from cputrain.pool import Pool

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType

    from cputrain.machine import Cpus


class Many(Executor):
    """Run functions that train in processes beside one another; an executor of futures.

    Each call gets cores of its own that share caches, and as many threads as cores. How many cores
    are best is measured while the calls run: calls per second, for 1, 2, 4, … cores.

    Args:
        cores: Cores for each call; "auto" for as many as are measured to be best.
        at_once: Largest number of calls at the same time; None for as many as there are cores.
        retries: How often a call is run again whose process was killed.
        context: A multiprocessing context or the name of a start method.
        cluster: "ray" or a `distributed.Client` of Dask's, whose machines run the calls.
        **settings: Settings of `cputrain.setup` for the processes, such as `record_step="auto"`.

    Examples:
        >>> from cputrain import Many
        >>> with Many(at_once=2) as many:
        ...     futures = [many.submit(pow, 2, exponent) for exponent in range(3)]
        >>> [future.result() for future in futures]
        [1, 2, 4]
    """

    def __init__(
        self,
        *,
        cores: int | str = "auto",
        at_once: int | None = None,
        retries: int = 0,
        context: Any = None,
        cluster: Any = None,
        **settings: Any,
    ) -> None:
        from cputrain.notebook.kwargs import settings_from_kwargs

        settings_from_kwargs(settings)  # raises UsageError if one is unknown
        workers = None if cluster is None else workers_of(cluster)
        self._allocator: CoreAllocator | CoreCounter
        if workers is None:
            machine = read_machine(RootSource(), detail=False)
            self._allocator = CoreAllocator(core_domains(machine), machine.budget.physical_cores)
        else:
            self._allocator = CoreCounter(workers.num_cores)
        most = self._allocator.num_cores
        if cores != "auto":
            _check_count("cores", cores, most, 'Say "auto" to have it measured.')
        if at_once is not None:
            _check_count("at_once", at_once, None, "Leave it out for as many as there are cores.")
        self._cores = None if cores == "auto" else int(cores)
        self._max_running = min(at_once or most, most // (self._cores or 1))
        self._settings = settings
        self._cores_per_job = CoresPerJob(most)
        self._workers = workers or PoolWorkers(self._max_running, retries, context)
        # reentrant: a future's callback may submit another call
        self._lock = threading.Condition(threading.RLock())
        self._waiting: deque[_SubmittedCall] = deque()
        self._num_running = 0
        self._is_shut_down = False

    @property
    def num_cores(self) -> int:
        """Cores of all calls together."""
        return self._allocator.num_cores

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn(*args, **kwargs)` in a process as soon as there are cores; return its future.

        Function, arguments and result are pickled; tensors and arrays are sent by shared memory.
        """
        future: Future[Any] = Future()
        with deferred_signals(), self._lock:
            if self._is_shut_down:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._waiting.append(_SubmittedCall(future, fn, args, kwargs))
            self._start_calls()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Accept no more calls; end the processes once those submitted have ended.

        Args:
            wait: Whether to return only then.
            cancel_futures: Whether to cancel the calls that have not begun.
        """
        with self._lock:
            self._is_shut_down = True
            cancelled = list(self._waiting) if cancel_futures else []
            if cancel_futures:
                self._waiting.clear()
            self._close_if_idle()
        for call in cancelled:
            call.future.cancel()
            call.future.set_running_or_notify_cancel()
        if wait:
            with self._lock:
                self._lock.wait_for(lambda: not self._waiting and not self._num_running)
            self._workers.join()

    def terminate(self) -> None:
        """Kill all processes; calls that have not ended are cancelled or fail."""
        with self._lock:
            self._is_shut_down = True
            waiting = list(self._waiting)
            self._waiting.clear()
        for call in waiting:
            call.future.cancel()
            call.future.set_running_or_notify_cancel()
        self._workers.terminate()

    def joblib_backend(self, n_jobs: int = -1) -> AbstractContextManager[Any]:
        """Return a context in which joblib, and scikit-learn's `n_jobs`, run their calls here.

        Args:
            n_jobs: Default number of calls at the same time; -1 for as many as fit.

        Raises:
            UsageError: joblib is not installed.
        """
        try:
            from joblib import parallel_config
        except ImportError:
            raise UsageError(
                "joblib", "is not installed", do="Install it with: pip install joblib"
            ) from None
        from cputrain.many.joblib_backend import ManyBackend

        return parallel_config(backend=ManyBackend(many=self), n_jobs=n_jobs)  # type: ignore[no-any-return]

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for all calls; after Ctrl-C, kill them."""
        if error_type is not None and not issubclass(error_type, Exception):
            self.terminate()
        else:
            self.shutdown(wait=True)

    def __enter__(self) -> Self:
        return self

    def _start_calls(self) -> None:
        """Start calls while there are cores for them."""
        while self._waiting and self._num_running < self._max_running:
            num_waiting = min(len(self._waiting), self._max_running - self._num_running)
            count = self._cores or self._cores_per_job.next(num_waiting, self._allocator.num_free)
            cores = self._allocator.take(min(count, self._allocator.num_cores))
            if cores is None:
                return
            call = self._waiting.popleft()
            if not call.future.set_running_or_notify_cancel():
                self._allocator.release(cores)
                continue
            self._cores_per_job.started(len(cores))
            self._num_running += 1
            cpus = tuple(sorted(cpu for core in cores for cpu in core))
            try:
                self._workers.start(
                    _call_on_cores,
                    (cpus, len(cores), self._settings, call.fn, call.args, call.kwargs),
                    len(cores),
                    partial(self._end, call, cores),
                    partial(self._fail, call, cores),
                )
            except Exception as error:  # what cannot be pickled
                self._num_running -= 1
                self._allocator.release(cores)
                call.future.set_exception(error)

    def _end(self, call: _SubmittedCall, cores: Sequence[Cpus], answer: tuple[float, Any]) -> None:
        """Give a call's value to its future, and its cores to another call."""
        elapsed_s, value = answer
        with self._lock:
            self._cores_per_job.add(
                JobRate(cores=len(cores), steps_per_s=1 / max(1e-9, elapsed_s), has_steps=False)
            )
            self._free(cores)
        call.future.set_result(value)

    def _fail(self, call: _SubmittedCall, cores: Sequence[Cpus], error: BaseException) -> None:
        with self._lock:
            self._free(cores)
        call.future.set_exception(error)

    def _free(self, cores: Sequence[Cpus]) -> None:
        self._num_running -= 1
        self._allocator.release(cores)
        self._start_calls()
        self._close_if_idle()
        self._lock.notify_all()

    def _close_if_idle(self) -> None:
        if self._is_shut_down and not self._waiting and not self._num_running:
            self._workers.close()


class PoolWorkers:
    """Processes of a Pool on this machine.

    Args:
        num_workers: Number of processes.
        retries: How often a call is run again whose process was killed.
        context: A multiprocessing context or the name of a start method.
    """

    def __init__(self, num_workers: int, retries: int, context: Any) -> None:
        self._pool = Pool(num_workers, retries=retries, context=context)

    def start(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        num_cores: int,  # noqa: ARG002  (its CPUs are among the arguments)
        callback: Callable[[Any], None],
        error_callback: Callable[[BaseException], None],
    ) -> None:
        """Start a call; one of the callbacks is called at its end."""
        self._pool.apply_async(function, args, callback=callback, error_callback=error_callback)

    def close(self) -> None:
        """Have the processes end, as all calls have ended."""
        self._pool.close()

    def join(self) -> None:
        """Wait for the end of the processes."""
        self._pool.join()

    def terminate(self) -> None:
        """Kill the processes."""
        self._pool.terminate()
        self._pool.join()


class _SubmittedCall:
    """A call that was submitted."""

    def __init__(
        self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Any
    ) -> None:
        self.future = future
        self.fn = fn
        self.args = args
        self.kwargs = kwargs


def _call_on_cores(
    cpus: tuple[int, ...],
    num_threads: int,
    settings: dict[str, Any],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[float, Any]:
    """Call a function in a worker, on some CPUs; return the seconds that it took, and its value."""
    _move_to(cpus)
    if not _workers_that_are_set_up:
        _workers_that_are_set_up.append(os.getpid())
        from cputrain import setup

        setup(**{"threads": num_threads, **settings})
    _set_threads(num_threads)
    started_at = time.perf_counter()
    value = fn(*args, **kwargs)
    return time.perf_counter() - started_at, value


_workers_that_are_set_up: list[int] = []
"""This process, once `setup` has been called in it."""


def _move_to(cpus: tuple[int, ...]) -> None:
    """Have all threads of this process run on some CPUs; none stands for any."""
    if cpus and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), cpus)
            except ProcessLookupError:  # it has ended meanwhile
                continue


def _set_threads(num_threads: int) -> None:
    """Have operators use that many threads."""
    if torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)
        from threadpoolctl import threadpool_limits

        threadpool_limits(num_threads, user_api="blas")


def _check_count(parameter: str, value: object, most: int | None, advice: str) -> None:
    is_count = isinstance(value, int) and not isinstance(value, bool)
    if not is_count or not 1 <= int(value) <= (most or int(value)):  # type: ignore[call-overload]
        limit = "" if most is None else f" to {most}, the cores of this process"
        raise argument_error(value, int)(
            parameter, f"must be a whole number from 1{limit or ' on'}", found=repr(value),
            do=advice,
        )  # fmt: skip
