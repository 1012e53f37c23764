"""Count the optimizer steps of a job of `cputrain many`, in a file that the queue maps, too."""

from __future__ import annotations

import mmap
import os
import struct

from cputrain.runtime.patching import never_compile
from cputrain.variables import PROGRESS

LAYOUT = struct.Struct("=Q")
"""Number of optimizer steps."""


def create_progress(path: str) -> None:
    """Create the file with no steps."""
    with open(path, "wb") as file:
        file.write(LAYOUT.pack(0))


class ProgressReader:
    """Steps of a job, as the queue sees them.

    Args:
        path: The file.
    """

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._memory = mmap.mmap(file.fileno(), LAYOUT.size, access=mmap.ACCESS_READ)

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        (steps,) = LAYOUT.unpack_from(self._memory)
        return int(steps)

    def close(self) -> None:
        """Close the mapping."""
        self._memory.close()


class ProgressWriter:
    """Counts the steps of this process.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(descriptor, LAYOUT.size)
        finally:
            os.close(descriptor)
        self._steps = 0
        self._pid = os.getpid()

    def add_step(self, *_: object) -> None:
        """Count a step; steps of forked processes are not counted."""
        self._steps += 1
        if os.getpid() == self._pid:
            LAYOUT.pack_into(self._memory, 0, self._steps)


def count_steps() -> None:
    """Count steps in the file that the queue named; child processes do not inherit the name.

    A job of several ranks is counted by the first.
    """
    path = os.environ.pop(PROGRESS)
    if os.environ.get("LOCAL_RANK", "0") != "0":
        return
    from torch.optim.optimizer import register_optimizer_step_post_hook

    try:
        writer = ProgressWriter(path)
    except OSError:  # the queue is gone, and with it the file
        return
    never_compile(ProgressWriter.add_step)
    register_optimizer_step_post_hook(writer.add_step)
