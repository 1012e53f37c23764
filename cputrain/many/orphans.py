"""End the processes of a job whose supervisor was killed; the kernel hands them to the queue."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

from cputrain.memory.tree import children_by_parent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Have processes whose parent has ended become children of this process, and not of init."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_orphans(known: Collection[int]) -> None:
    """Kill all processes below this one, except for the known children and what is below them."""
    while True:
        children = children_by_parent()
        orphans = [pid for pid in children.get(os.getpid(), ()) if pid not in known]
        if not orphans:
            return
        waiting = list(orphans)
        while waiting:
            pid = waiting.pop()
            waiting += children.get(pid, ())
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in orphans:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
