"""Exceptions that cputrain raises, and the exit codes they end a command with.

    CputrainError              base class; ends a command with exit code 1
    ├── UsageError        2    invalid argument, option, variable or script; a ValueError
    │   ├── ArgumentTypeError 2  an argument of a wrong type; a TypeError
    │   ├── PlanError     2    a plan that cannot be read, or does not fit this machine
    │   ├── UnguardedMain 1    a script without a main guard that starts workers on import
    │   └── SourceError   2    a sysroot or capture that does not describe a machine
    ├── LaunchError     125    the script could not be started, by a fault of the launcher
    │   ├── NotExecutable 126  the command exists, but cannot be executed
    │   └── NotFound    127    a command, file, package or case does not exist
    ├── ResourceError     1    the system refused memory, a descriptor or a process; an OSError
    ├── MemoryLimitError  1    a step needs more memory than --memory-limit; a MemoryError
    ├── RecomputationError 1   activations that were dropped cannot be computed again
    ├── TaskLost          1    a pool's task has no result and will not get one
    │   ├── WorkerDied    1    the worker process exited while it ran the task
    │   └── TaskTimeout   1    the task exceeded its timeout and was killed; a TimeoutError
    ├── TaskError         1    a task's exception that could not be pickled or rebuilt
    ├── FillFailed        1    rows of a tensor could not be filled; has the rows and a mask
    ├── RankGone          1    the gradient all-reduce failed: a rank exited or timed out
    ├── PartsDiffer       1    replicas diverged: they did not reach the same barriers
    ├── DifferentiatedTwice 1  double backward through a sharded batch, which is not supported
    └── InternalError   125    a bug in cputrain; the message begins with [internal]

A message has four parts: the parameter, the rule, the value found, and the remedy.
"""

from __future__ import annotations


class CputrainError(Exception):
    """Base class of all exceptions of cputrain: parameter, rule, value found and remedy."""

    exit_code = 1

    def __init__(self, parameter: str, rule: str, *, found: str = "", do: str = "") -> None:
        self.parameter = parameter
        self.rule = rule
        self.found = found
        self.do = do
        message = f"{parameter} {rule}"
        if found:
            message += f"; found {found}"
        message += "."
        if do:
            message += f" {do}"
        super().__init__(message)

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.parameter, self.rule, self.found, self.do)


def _rebuild(
    kind: type[CputrainError], parameter: str, rule: str, found: str, do: str
) -> CputrainError:
    return kind(parameter, rule, found=found, do=do)


class UsageError(CputrainError, ValueError):
    """Invalid argument, option, environment variable or script."""

    exit_code = 2


class ArgumentTypeError(UsageError, TypeError):
    """Argument of a wrong type."""


def argument_error(value: object, *expected: type) -> type[UsageError]:
    """Return the class of an invalid argument's error: ArgumentTypeError if its type is wrong."""
    has_right_type = isinstance(value, expected) and not isinstance(value, bool)
    return UsageError if has_right_type else ArgumentTypeError


class PlanError(UsageError):
    """Plan that cannot be read, or does not fit this machine."""


class UnguardedMain(UsageError, RuntimeError):
    """Script without a main guard: every worker that imports it starts workers as well."""

    exit_code = 1


class SourceError(UsageError):
    """Sysroot or capture that does not describe a machine."""


class LaunchError(CputrainError):
    """Script that could not be started, by a fault of the launcher."""

    exit_code = 125


class NotExecutable(LaunchError):
    """Command that exists, but cannot be executed."""

    exit_code = 126


class NotFound(LaunchError):
    """Command, file, package or case that does not exist."""

    exit_code = 127


class ResourceError(CputrainError, OSError):
    """Memory, file descriptor or process that the operating system refused."""

    @classmethod
    def of(cls, error: OSError, parameter: str, rule: str) -> ResourceError:
        """Build the exception from an OSError, with the limit to raise for its errno."""
        import errno

        return cls(
            parameter,
            rule,
            found=error.strerror or str(error),
            do={
                errno.EMFILE: "Raise the limit on open files: ulimit -n 4096.",
                errno.ENFILE: "Close files in other processes, or raise fs.file-max.",
                errno.EAGAIN: "Raise the limit on processes: ulimit -u; or use fewer workers.",
                errno.EFBIG: "Raise the limit on file sizes: ulimit -f unlimited.",
            }.get(error.errno or 0, "Use fewer workers, or free memory."),
        )


class MemoryLimitError(CputrainError, MemoryError):
    """A step of training needs more memory than its limit."""


class RecomputationError(CputrainError, RuntimeError):
    """Activations were dropped to keep a memory limit, and cannot be computed again."""


class TaskLost(CputrainError, RuntimeError):
    """Task of a pool that has no result and will not get one."""


class WorkerDied(TaskLost):
    """Task whose worker process exited while running it."""


class TaskTimeout(TaskLost, TimeoutError):
    """Task that exceeded its timeout and was killed."""


class TaskError(CputrainError, RuntimeError):
    """Exception of a task that could not be pickled or rebuilt in the parent process."""


class FillFailed(CputrainError, RuntimeError):
    """Rows of a tensor that could not be filled."""

    failed: range
    """Range of rows that could not be filled."""
    done: object
    """Boolean tensor, True for filled rows; pass it to `fill` to resume."""


class RankGone(CputrainError):
    """Failed all-reduce of gradients: a rank of the node exited or timed out."""


class PartsDiffer(CputrainError, RuntimeError):
    """Replicas that diverged, so that a barrier would wait forever."""


class DifferentiatedTwice(CputrainError, RuntimeError):
    """Double backward (`create_graph=True`) through a sharded batch, which is not supported."""


class InternalError(CputrainError):
    """Bug in cputrain."""

    exit_code = 125

    def __init__(self, parameter: str, rule: str, *, found: str = "", do: str = "") -> None:
        super().__init__(
            f"[internal] {parameter.removeprefix('[internal] ')}", rule, found=found, do=do
        )


def text_kind(text: str) -> str:
    """Return what a text is that should be JSON and is not, for the `found` of an error."""
    start = text.lstrip()[:20].lower()
    if not start:
        return "an empty file"
    if start.startswith("<"):
        return "a page of HTML"
    return "JSON that is cut off or damaged" if start[0] in "{[" else "text that is not JSON"
