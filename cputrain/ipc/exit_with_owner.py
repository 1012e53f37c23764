"""Kill workers when the process that owns them exits, even by SIGKILL.

A worker in a long call reads no pipe, and `PR_SET_PDEATHSIG` follows the thread that forked, and
not the owner of a fork server's workers. So the owner holds the writing end of a pipe, and the
kernel sends SIGKILL to each worker (F_SETSIG, O_ASYNC) when that end is closed.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import weakref

from cputrain.ipc.links import End, pipe

_F_SETSIG = 10
"""Command of fcntl on Linux; Python has no name for it before 3.13."""

_signalling_descriptors: list[int] = []
"""Descriptors that the kernel signals for; they stay open until the process ends."""


def exit_with_owner(reading_end: End) -> None:
    """Have the kernel kill this process when the last writing end of the pipe is closed.

    The signal's receiver is a property of the open file description, which forked processes share:
    so each worker opens the pipe again through /proc.
    """
    try:
        descriptor = os.open(f"/proc/self/fd/{reading_end.fileno()}", os.O_RDONLY | os.O_NONBLOCK)
    except OSError:  # no /proc: a worker without an owner exits only after its task
        return
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(descriptor, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    _signalling_descriptors.append(descriptor)
    poll = select.poll()
    poll.register(descriptor, 0)
    if poll.poll(0):  # the owner exited before the signal was set up
        os._exit(1)


class OwnerPipe:
    """Pipe whose writing end is open in its owner only, for as long as the owner runs.

    Closing it kills the workers that called `exit_with_owner` with its reading end.
    """

    def __init__(self, *, of: str = "a worker") -> None:
        read, write = pipe(of=of)
        self.reading_end = End(read)
        self._writing_end = End(write)
        _open_pipes.add(self)

    def close(self) -> None:
        """Close both ends, which kills the workers that still run."""
        self._writing_end.close()
        self.reading_end.close()

    def close_in_child(self) -> None:
        """Close the writing end in a forked process, where it could outlive the owner."""
        self._writing_end.close()


_open_pipes: weakref.WeakSet[OwnerPipe] = weakref.WeakSet()


def _close_inherited() -> None:
    for pipe_of_parent in list(_open_pipes):
        pipe_of_parent.close_in_child()
    _open_pipes.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)
