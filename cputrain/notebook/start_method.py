"""Setting `start_method` in a running process."""

from __future__ import annotations

import multiprocessing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.plan import Decision

POLICY = "start_method"


class Method:
    """The start method that was set, and the one before."""

    def __init__(self, method: str) -> None:
        self._ours = method
        self._before = multiprocessing.get_start_method(allow_none=True)
        multiprocessing.set_start_method(method, force=True)

    def describe(self) -> str:
        return ""

    def undo(self) -> None:
        if multiprocessing.get_start_method(allow_none=True) == self._ours:
            multiprocessing.set_start_method(self._before, force=True)


def is_so(torch: ModuleType, decision: Decision) -> bool:  # noqa: ARG001  (as the others have it)
    """Return whether the start method is set already."""
    return bool(multiprocessing.get_start_method(allow_none=True) == decision.value["script"])


def apply(torch: ModuleType, decision: Decision) -> Method:  # noqa: ARG001
    """Set the start method."""
    return Method(decision.value["script"])
