"""Setting `interop_threads` in a running process: torch allows to set it once."""

from __future__ import annotations

from cputrain.notebook.too_late import TooLateError
from cputrain.runtime import interop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

    from cputrain.plan import Decision
    from cputrain.runtime.apply import Applied

POLICY = interop.POLICY

ONCE = "torch takes this number once in a process, before its first parallel work"


def is_so(torch: ModuleType, decision: Decision) -> bool:
    """Return whether torch has this number of inter-op threads."""
    return bool(torch.get_num_interop_threads() == decision.value)


def apply(torch: ModuleType, decision: Decision) -> Applied | None:
    """Set the number of inter-op threads.

    Raises:
        TooLateError: It was set before, or parallel work has started.
    """
    try:
        return interop.apply(torch, decision.value)
    except RuntimeError:
        raise TooLateError(ONCE) from None
