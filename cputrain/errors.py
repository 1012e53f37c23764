"""Everything cputrain raises on purpose.

    CputrainError              what every one below is; ends a command with exit code 1
    ├── UsageError        2    what the user typed, set or wrote breaks a rule; a ValueError
    │   ├── PlanError     2    a plan that cannot be read, or does not fit this machine
    │   ├── UnguardedMain 1    a script starts workers whenever it is imported, also by a worker
    │   └── SourceError   2    a sysroot or capture that is not a machine
    ├── LaunchError     125    the script could not be started, and it was our doing
    │   ├── NotExecutable 126  it is there, but it cannot be run
    │   └── NotFound    127    it is not there
    ├── ResourceError     1    the system refused memory, a descriptor or a process; an OSError
    ├── TaskLost          1    a pool's task has no result, and never will
    │   ├── WorkerDied    1    the process that ran it ended
    │   └── TaskTimeout   1    it ran longer than it may, and was killed; a TimeoutError
    ├── TaskError         1    a task's exception that could not be brought here as it was
    ├── FillFailed        1    a part of a tensor could not be filled; says which, and what is there
    ├── RankGone          1    ranks cannot add up their gradients: one has ended, or does not come
    ├── PartsDiffer       1    replicas did not do the same with their parts of a batch
    ├── DifferentiatedTwice 1  gradients of a divided batch cannot be differentiated again
    └── InternalError   125    a bug of ours; the message begins with [internal]

A message says four things: the parameter, the rule, what was found, and what to do next.
"""

from __future__ import annotations


class CputrainError(Exception):
    """The root of the tree; see the module's docstring."""

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
    """Something the user typed, set or wrote breaks a rule."""

    exit_code = 2


class PlanError(UsageError):
    """A plan that cannot be read, or does not fit this machine."""


class UnguardedMain(UsageError, RuntimeError):
    """A script starts workers whenever it is imported, and so does each worker that imports it."""

    exit_code = 1


class SourceError(UsageError):
    """A sysroot or capture that is not a machine."""


class LaunchError(CputrainError):
    """The script could not be started, and it was our doing."""

    exit_code = 125


class NotExecutable(LaunchError):
    """It is there, but it cannot be run."""

    exit_code = 126


class NotFound(LaunchError):
    """It is not there."""

    exit_code = 127


class ResourceError(CputrainError, OSError):
    """The system refused memory, a descriptor or a process."""

    @classmethod
    def of(cls, error: OSError, parameter: str, rule: str) -> ResourceError:
        """What the system refused, and how to be granted it."""
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


class TaskLost(CputrainError, RuntimeError):
    """A pool's task has no result, and never will."""


class WorkerDied(TaskLost):
    """The process that ran a task ended."""


class TaskTimeout(TaskLost, TimeoutError):
    """A task ran longer than it may, and was killed."""


class TaskError(CputrainError, RuntimeError):
    """A task's exception that could not be brought here as it was."""


class FillFailed(CputrainError, RuntimeError):
    """A part of a tensor could not be filled."""

    failed: range
    """The rows that could not be filled."""
    done: object
    """A boolean tensor: which rows are there; what `fill` takes to go on."""


class RankGone(CputrainError):
    """Ranks of a node cannot add up their gradients: one has ended, or has not come in time."""


class PartsDiffer(CputrainError, RuntimeError):
    """Replicas did not do the same, so that what one waits for will not come."""


class DifferentiatedTwice(CputrainError, RuntimeError):
    """Somebody asked for gradients of a divided batch that can be differentiated again."""


class InternalError(CputrainError):
    """A bug of ours."""

    exit_code = 125

    def __init__(self, parameter: str, rule: str, *, found: str = "", do: str = "") -> None:
        super().__init__(
            f"[internal] {parameter.removeprefix('[internal] ')}", rule, found=found, do=do
        )
