"""Messages of loaders to the user: each is printed once, as one line."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_reported: set[str] = set()

_listener: Callable[[str], None] | None = None


def listen(listener: Callable[[str], None]) -> None:
    """Have `listener` called with messages instead of printing them; the launcher does so."""
    global _listener
    _listener = listener


def say(message: str) -> None:
    """Print a message to standard error, or pass it to the listener, unless it is a repetition."""
    if message in _reported:
        return
    _reported.add(message)
    if _listener is not None:
        _listener(message)
    elif sys.stderr is not None:
        try:
            print(f"cputrain: {message}", file=sys.stderr)
        except (OSError, ValueError):  # standard error is closed
            return
