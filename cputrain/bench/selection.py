"""Cases of a benchmark by their names, and their runs in subprocesses."""

from __future__ import annotations

from cputrain.errors import CputrainError, NotFound
from cputrain.measure.child import CaseFailedError, run_case

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from typing import Any


def select_names(names: Sequence[str], known: Collection[str], kind: str) -> tuple[str, ...]:
    """Return the given names, by default all that are known.

    Args:
        names: Names that a user gave.
        known: Names of all cases.
        kind: What a name is of, such as "network".

    Raises:
        NotFound: There is no case of that name.
    """
    for name in names:
        if name not in known:
            raise NotFound(
                f"the {kind} {name}", f"must be one of {', '.join(known)}",
                do="Name none to run all.",
            )  # fmt: skip
    return tuple(names) or tuple(known)


def run_steps(module: str, request: dict[str, Any]) -> dict[str, Any]:
    """Time steps by `python -m module` and return its answer.

    Raises:
        CputrainError: The subprocess failed or timed out.
    """
    try:
        return run_case(module, request)
    except CaseFailedError as error:
        raise CputrainError(
            f"steps of {request['name']}", "must run without error", found=str(error)
        ) from error
