"""The end of a process waits for threads that run the script's functions.

Python ends a thread that asks for its lock during finalization by unwinding the thread's stack. If
the thread comes from an operator of torch then, the process ends with SIGABRT ("terminate called
without an active exception").
"""

from __future__ import annotations

import os
import time
import weakref
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

MAX_WAIT_S = 5.0
"""How long the end of a process may take for such threads."""

IDLE_S = 0.1
"""A thread that has not run for so long waits for something, outside of operators."""

_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_registered_pids: set[int] = set()
"""This process once it waits at its end, and those that it was forked from."""


def wait_at_exit(thread: threading.Thread) -> None:
    """Have the end of this process wait for a thread, unless the thread itself waits."""
    if os.getpid() not in _registered_pids:  # a forked child has no finalizers of its parent
        _registered_pids.add(os.getpid())
        Finalize(None, _wait, exitpriority=0)  # behind pools, which are terminated before
    _threads.add(thread)


def _wait() -> None:
    """Wait for each thread until it has ended or waits itself, all of them for `MAX_WAIT_S`."""
    end = time.monotonic() + MAX_WAIT_S
    for thread in list(_threads):
        before = _time_of(thread)
        while thread.is_alive() and time.monotonic() < end:
            thread.join(IDLE_S)
            after = _time_of(thread)
            if after == before:
                break
            before = after


def _time_of(thread: threading.Thread) -> list[str]:
    """Return how long a thread has run, and waited for a core; empty where nobody tells it."""
    try:
        with open(f"/proc/self/task/{thread.native_id}/schedstat") as file:
            return file.read().split()[:2]
    except OSError:  # it has ended, or this is not Linux
        return []
