"""What came of a task, as whoever waits for it gets it: a value, or an error that says all."""

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
    try:
        value = unpack(data if data else memoryview(leases.pop()), leases)
    except BaseException as error:  # whatever a result is made of: the caller is told
        return False, TaskError(
            "a task's result",
            "must be made of what this process can import",
            found=f"{type(error).__name__}: {error}",
        )
    if not isinstance(value, Raised) or status is Status.DONE:
        return True, value
    return False, _as_raised(value)


def _as_raised(raised: Raised) -> BaseException:
    why = "cannot be pickled"
    error: BaseException | None = None
    if raised.pickled:
        try:
            error = unpack(raised.pickled, ())
        except BaseException as reason:  # whatever the exception is made of: the caller is told
            why = f"cannot be made here ({type(reason).__name__}: {reason})"
        if error is not None and not isinstance(error, Exception):
            error, why = None, "is no Exception and would end this process"
    if error is None:
        error = TaskError(
            "a task",
            f"raised {raised.kind}, which {why}",
            found=raised.says or "no text",
        )
    error.__cause__ = multiprocessing_pool.RemoteTraceback(f'\n"""\n{raised.traceback}"""')  # type: ignore[attr-defined]
    return error


def stopped(name: str, error: StopIteration) -> TaskError:
    """Stand for a StopIteration of a task where it would end an iterator without a word."""
    made = TaskError(
        f"a task of {name}",
        "must not raise StopIteration",
        found=f"StopIteration: {error}",
        do="An iterator of results would seem to be at its end: raise another exception.",
    )
    made.__cause__ = error
    return made


def not_set_up(cause: BaseException) -> TaskLost:
    error = TaskLost(
        "the initializer of a pool",
        "must not raise",
        found=said(cause),
        do="Its traceback is above.",
    )
    error.__cause__ = cause
    return error


def fate_of(task: Task, item: int, how: str, *, killed: bool) -> TaskLost:
    tried = f" {task.attempts} times" * (task.attempts > 1)
    if killed:
        return TaskTimeout(
            task.description(item),
            f"must end within {task.call.timeout:g} s",
            found=f"it running longer{tried}, and killed its {how.partition(' was ')[0]}",
            do="Give it a longer timeout, or smaller pieces of work.",
        )
    return WorkerDied(task.description(item), f"lost its worker{tried}", found=how, do=_advice(how))


def lost_with(task: Task, culprit: Task, how: str) -> TaskLost:
    """Of a small task whose result had not been sent when another one ended their worker."""
    return WorkerDied(
        task.description(),
        f"lost its result, as {culprit.description()} ended their worker",
        found=how,
        do="retries=1 runs both again.",
    )


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def terminated() -> TaskLost:
    return TaskLost(
        "a task",
        "has no result",
        found="that its pool was terminated",
        do="Wait for the results first: close() and join(), or get() within the with block.",
    )


def _advice(how: str) -> str:
    if "SIGKILL" in how:
        return (
            "The kernel sends SIGKILL when memory is short: use fewer processes or smaller tasks; "
            "retries=1 runs such a task again."
        )
    if "SIGSEGV" in how or "SIGBUS" in how or "SIGABRT" in how:
        return "Native code crashed: call the function in a script under python -X faulthandler."
    return "Let the function return or raise instead of ending its process."
