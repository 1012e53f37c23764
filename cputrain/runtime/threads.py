"""Set torch's number of intra-op threads, where it differs from the plan's."""

from __future__ import annotations

import os

from cputrain.machine import threads_set_by_launcher
from cputrain.plan.threads import thread_variables
from cputrain.runtime.state import NOW

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

POLICY = "threads"


class Threads:
    """The number of intra-op threads that was set, and the one before."""

    def __init__(self, torch: ModuleType, previous: int) -> None:
        self._torch = torch
        self._previous = previous
        self._count = torch.get_num_threads()

    def describe(self) -> str:
        count = self._torch.get_num_threads()
        return f"{count} thread{'s' * (count != 1)}"

    def undo(self) -> None:
        if self._torch.get_num_threads() == self._count:  # otherwise the script has set it since
            self._torch.set_num_threads(self._previous)


def apply(torch: ModuleType, value: object) -> Threads | None:
    """Set the plan's number of threads, unless this process has another limit."""
    if not isinstance(value, int):
        return None
    previous = torch.get_num_threads()
    if value != previous and _may_set(value, previous):
        torch.set_num_threads(value)
    return Threads(torch, previous)


def _may_set(value: int, previous: int) -> bool:
    """Return whether the plan's number of threads applies to this process.

    A child process with thread variables of its own keeps them: joblib limits its workers this way.
    One with a narrower CPU mask has fewer threads by default, and gets no more.
    """
    if threads_set_by_launcher(os.environ):
        return True
    if thread_variables(os.environ) != NOW.thread_variables:
        return False
    return value < previous or NOW.is_planned
