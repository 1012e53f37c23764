"""Threads, of which the system may refuse one."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from cputrain.errors import ResourceError

if TYPE_CHECKING:
    import threading


def start_thread(thread: threading.Thread, of: str) -> None:
    """Start it, or raise an error that says what the system refused."""
    try:
        thread.start()
    except RuntimeError as error:  # all that Python tells
        refused = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        raise ResourceError.of(refused, of, "got no thread") from error
