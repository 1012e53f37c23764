"""Setting `placement` in a running process: the CPU mask of all its threads."""

from __future__ import annotations

import os

from cputrain.machine import format_list
from cputrain.notebook.too_late import RefusedError
from cputrain.runtime.placement import Placement

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from types import ModuleType

    from cputrain.plan import Decision

POLICY = "placement"


class Placed:
    """The CPU mask that was set, and each thread's mask before."""

    def __init__(self, cpus: Collection[int]) -> None:
        self._whole = os.sched_getaffinity(0)
        self._before: dict[int, set[int]] = {}
        new = _threads()
        while new:  # a running thread may start others meanwhile
            for thread in new:
                self._place(thread, cpus)
            new = _threads() - self._before.keys()

    def _place(self, thread: int, cpus: Collection[int]) -> None:
        self._before[thread] = self._whole
        try:
            self._before[thread] = os.sched_getaffinity(thread)
            os.sched_setaffinity(thread, cpus)
        except ProcessLookupError:  # the thread has ended
            return
        except OSError as error:
            self.undo()
            shown = format_list(tuple(sorted(cpus)))
            raise RefusedError(f"the CPU mask {shown} was refused ({error.strerror})") from None

    def describe(self) -> str:
        return Placement().describe()

    def undo(self) -> None:
        for thread in _threads():
            try:
                os.sched_setaffinity(thread, self._before.get(thread, self._whole))
            except OSError:  # the thread has ended, or the CPUs are offline
                continue


def _threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return {0}


def is_so(torch: ModuleType, decision: Decision) -> bool:  # noqa: ARG001  (as the others have it)
    """Return whether the process has this CPU mask."""
    return os.sched_getaffinity(0) == set(decision.value)


def apply(torch: ModuleType, decision: Decision) -> Placed:  # noqa: ARG001
    """Set the CPU mask of all threads.

    Raises:
        RefusedError: The kernel refuses it.
    """
    return Placed(decision.value)
