"""Starting threads, with an error that names the system's limit."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from cputrain.errors import ResourceError

if TYPE_CHECKING:
    import threading


def start_thread(thread: threading.Thread, of: str) -> None:
    """Start a thread.

    Args:
        of: What the thread belongs to, as the error names it: "a pool".

    Raises:
        ResourceError: The system refused another thread.
    """
    try:
        thread.start()
    except RuntimeError as error:  # Python does not pass on the errno
        refused = OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        raise ResourceError.of(refused, of, "got no thread") from error
