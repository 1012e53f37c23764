"""Sets the number of threads of one operator, where torch's own differs from the plan's."""

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
    """The number of threads, as it is by now."""

    def __init__(self, torch: ModuleType, before: int) -> None:
        self._torch = torch
        self._before = before
        self._count = torch.get_num_threads()

    def describe(self) -> str:
        count = self._torch.get_num_threads()
        return f"{count} thread{'s' * (count != 1)}"

    def undo(self) -> None:
        if self._torch.get_num_threads() == self._count:  # otherwise the script chose since
            self._torch.set_num_threads(self._before)


def apply(torch: ModuleType, value: object) -> Threads | None:
    """Set the plan's number, unless somebody has given this process another limit."""
    if not isinstance(value, int):
        return None
    before = torch.get_num_threads()
    if value != before and _may_set(value, before):
        torch.set_num_threads(value)
    return Threads(torch, before)


def _may_set(value: int, before: int) -> bool:
    """Return whether the plan's number holds here.

    A child with variables of its own keeps to them: joblib limits its workers so. A child with a
    narrower CPU mask has fewer threads by itself, and gets no more.
    """
    if threads_set_by_launcher(os.environ):
        return True
    if thread_variables(os.environ) != NOW.thread_variables:
        return False
    return value < before or NOW.is_planned
