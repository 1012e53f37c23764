"""Huge pages for the heap: a matter of the environment that a process begins with."""

from __future__ import annotations

from cputrain.notebook import began
from cputrain.notebook.too_late import TooLateError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import NoReturn

    from cputrain.plan import Decision

POLICY = "huge_pages"


def is_so(torch: ModuleType, decision: Decision) -> bool:  # noqa: ARG001  (as the others have it)
    """Whether the process began with them."""
    return began.has(decision.environment)


def apply(torch: ModuleType, decision: Decision) -> NoReturn:  # noqa: ARG001
    """There is no way any more."""
    raise TooLateError("glibc reads GLIBC_TUNABLES when a process starts")
