"""Outcomes of tasks as the caller gets them: a value, or an error with its cause and a hint."""

from __future__ import annotations

from multiprocessing import pool as multiprocessing_pool
from typing import TYPE_CHECKING, Any

from cputrain.errors import TaskError, TaskLost, TaskTimeout, WorkerDied
from cputrain.ipc import unpack
from cputrain.pool.packets import Status
from cputrain.pool.worker import Raised

if TYPE_CHECKING:
    from cputrain.pool.tasks import Task


def outcome_of(status: Status, data: Any, leases: list[Any]) -> tuple[bool, Any]:
    """Unpack a worker's result; return (True, value) or (False, exception)."""
    try:
        value = unpack(data if data else memoryview(leases.pop()), leases)
    except BaseException as error:  # from user code while unpickling: the caller gets it
        return False, TaskError(
            "a task's result",
            "must be made of what this process can import",
            found=f"{type(error).__name__}: {error}",
        )
    if not isinstance(value, Raised) or status is Status.DONE:
        return True, value
    return False, _rebuild_exception(value)


def _rebuild_exception(raised: Raised) -> BaseException:
    """Return the exception that a task raised, with the worker's traceback as its cause."""
    reason = "cannot be pickled"
    error: BaseException | None = None
    if raised.pickled:
        try:
            error = unpack(raised.pickled, ())
        except BaseException as failure:  # from user code while unpickling: the caller gets it
            reason = f"cannot be made here ({type(failure).__name__}: {failure})"
        if error is not None and not isinstance(error, Exception):
            error, reason = None, "is no Exception and would end this process"
    if error is None:
        error = TaskError(
            "a task",
            f"raised {raised.kind}, which {reason}",
            found=raised.says or "no text",
        )
    error.__cause__ = multiprocessing_pool.RemoteTraceback(f'\n"""\n{raised.traceback}"""')  # type: ignore[attr-defined]
    return error


def stop_iteration_error(name: str, error: StopIteration) -> TaskError:
    """Return the error in place of a task's StopIteration, which would end an iterator silently."""
    task_error = TaskError(
        f"a task of {name}",
        "must not raise StopIteration",
        found=f"StopIteration: {error}",
        do="An iterator of results would seem to be at its end: raise another exception.",
    )
    task_error.__cause__ = error
    return task_error


def initializer_error(cause: BaseException) -> TaskLost:
    """Return the error for an initializer that raised `cause`."""
    error = TaskLost(
        "the initializer of a pool",
        "must not raise",
        found=describe(cause),
        do="Its traceback is above.",
    )
    error.__cause__ = cause
    return error


def task_lost_error(task: Task, item: int, exit_reason: str, *, killed: bool) -> TaskLost:
    """Return the error for a task whose worker exited, or was killed for its timeout."""
    again = f" {task.attempts} times" * (task.attempts > 1)
    if killed:
        return TaskTimeout(
            task.description(item),
            f"must end within {task.call.timeout:g} s",
            found=f"it running longer{again}, and killed its {exit_reason.partition(' was ')[0]}",
            do="Give it a longer timeout, or smaller pieces of work.",
        )
    return WorkerDied(
        task.description(item),
        f"lost its worker{again}",
        found=exit_reason,
        do=_advice(exit_reason),
    )


def result_lost_error(task: Task, culprit: Task, exit_reason: str) -> TaskLost:
    """Return the error for a bundled task whose result was lost when `culprit` ended the worker."""
    return WorkerDied(
        task.description(),
        f"lost its result, as {culprit.description()} ended their worker",
        found=exit_reason,
        do="retries=1 runs both again.",
    )


def describe(error: BaseException) -> str:
    """Return an exception's type and text."""
    return f"{type(error).__name__}: {error}"


def terminated_error() -> TaskLost:
    """Return the error for a task of a terminated pool."""
    return TaskLost(
        "a task",
        "has no result",
        found="that its pool was terminated",
        do="Wait for the results first: close() and join(), or get() within the with block.",
    )


def _advice(exit_reason: str) -> str:
    """Return the hint that fits a worker's exit status."""
    if "SIGKILL" in exit_reason:
        return (
            "The kernel sends SIGKILL when memory is short: use fewer processes or smaller tasks; "
            "retries=1 runs such a task again."
        )
    if "SIGSEGV" in exit_reason or "SIGBUS" in exit_reason or "SIGABRT" in exit_reason:
        return "Native code crashed: call the function in a script under python -X faulthandler."
    return "Let the function return or raise instead of ending its process."
