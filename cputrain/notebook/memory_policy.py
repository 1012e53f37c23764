"""Setting `memory_policy` in a running process: existing pages stay where they are."""

from __future__ import annotations

from cputrain.launch.process import interleave
from cputrain.notebook.too_late import RefusedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

    from cputrain.plan import Decision

POLICY = "memory_policy"


class Interleaved:
    """Interleaved memory policy of this thread and the threads that it starts."""

    def __init__(self, nodes: Sequence[int]) -> None:
        problem = interleave(nodes)
        if problem:
            raise RefusedError(problem.partition(";")[0])

    def describe(self) -> str:
        return ""

    def undo(self) -> None:
        interleave(())


def is_so(torch: ModuleType, decision: Decision) -> bool:  # noqa: ARG001  (as the others have it)
    """Return False: setting the policy again does no harm."""
    return False


def apply(torch: ModuleType, decision: Decision) -> Interleaved:  # noqa: ARG001
    """Set the memory policy.

    Raises:
        RefusedError: The kernel refuses it.
    """
    return Interleaved(decision.value["interleave"])
