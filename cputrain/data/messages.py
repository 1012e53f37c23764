"""What a loader says without being asked: once, in one line."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_said: set[str] = set()

_listener: Callable[[str], None] | None = None


def listen(listener: Callable[[str], None]) -> None:
    """Have notices told to somebody else; under the launcher, the line at the end of the run."""
    global _listener
    _listener = listener


def say(message: str) -> None:
    """Tell the user, unless this has been told."""
    if message in _said:
        return
    _said.add(message)
    if _listener is not None:
        _listener(message)
    elif sys.stderr is not None:
        try:
            print(f"cputrain: {message}", file=sys.stderr)
        except (OSError, ValueError):  # standard error is closed: nobody is listening
            return
