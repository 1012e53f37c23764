"""What a loader says without being asked: once, in one line."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_said: set[str] = set()

listener: Callable[[str], None] | None = None
"""Who hears the notices instead; under the launcher, the line at the end of the run."""


def say(message: str) -> None:
    """Tell the user, unless this has been told."""
    if message in _said:
        return
    _said.add(message)
    if listener is not None:
        listener(message)
    elif sys.stderr is not None:
        try:
            print(f"cputrain: {message}", file=sys.stderr)
        except (OSError, ValueError):  # standard error is closed: nobody is listening
            return
