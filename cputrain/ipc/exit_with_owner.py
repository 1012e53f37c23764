"""Have a worker killed at once when the process that it works for ends, however that ends.

A worker in a long call reads no pipe, and `PR_SET_PDEATHSIG` is bound to the thread that forked
and says nothing to workers of a fork server. So the owner holds the writing end of a pipe, and
each worker has the system send it SIGKILL when that end is closed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import weakref

from cputrain.ipc.links import End, pipe

_F_SETSIG = 10

_armed: list[int] = []
"""Descriptors that bring the signal; they must stay open."""


def exit_with_owner(reading_end: End) -> None:
    """Have this process killed when every writing end of the pipe is closed.

    The signal belongs to an opened file, which forked processes share, so each worker opens the
    pipe anew.
    """
    try:
        descriptor = os.open(f"/proc/self/fd/{reading_end.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # no /proc: then a worker whose owner is gone ends after its task
        return
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    _armed.append(descriptor)
    owner = select.poll()
    owner.register(descriptor, 0)
    if owner.poll(0):  # it ended before the signal was asked for
        os._exit(1)


class OwnerPipe:
    """A pipe whose writing end is open for as long as its owner runs, and in no other process.

    Closing it kills the workers that called `exit_with_owner`.
    """

    def __init__(self, *, of: str = "a worker") -> None:
        read, write = pipe(of=of)
        self.reading_end = End(read)
        self._writing_end = End(write)
        _owned.add(self)

    def close(self) -> None:
        """Kill the workers that still run."""
        self._writing_end.close()
        self.reading_end.close()

    def close_in_child(self) -> None:
        """Let go of the writing end in a forked process: it must not outlive the owner."""
        self._writing_end.close()


_owned: weakref.WeakSet[OwnerPipe] = weakref.WeakSet()


def _close_inherited() -> None:
    for owned in list(_owned):
        owned.close_in_child()
    _owned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
