"""Setting `allocator` in a running process: libraries cannot be preloaded any more."""

from __future__ import annotations

from cputrain.notebook import initial_env as began
from cputrain.notebook.too_late import RefusedError, TooLateError
from cputrain.record import plain
from cputrain.runtime import allocator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.plan import Decision
    from cputrain.runtime.apply import Applied

POLICY = allocator.POLICY


def is_so(torch: ModuleType, decision: Decision) -> bool:  # noqa: ARG001  (as the others have it)
    """Return whether the process started with this library preloaded."""
    return began.has(decision.environment)


def apply(torch: ModuleType, decision: Decision) -> Applied:
    """Keep freed memory from the next step on.

    Raises:
        TooLateError: The decision preloads a library.
        RefusedError: The C library is not glibc.
    """
    if "LD_PRELOAD" in decision.environment:
        raise TooLateError("a library can be preloaded only when a process starts")
    applied = allocator.apply(torch, plain(decision.value))
    if applied is None:
        raise RefusedError("this C library has no mallopt")
    return applied
