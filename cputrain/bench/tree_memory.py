"""The peak of the memory that a process and all it starts hold together.

Proportional set sizes are added up: a page that forked workers share is counted once. Reading them
takes the kernel a while, so nothing is sampled unless memory is what is to be measured.
"""

from __future__ import annotations

import os
import threading

INTERVAL_S = 0.1


class TreeMemory:
    """A thread that samples the memory of a process group until it is stopped."""

    def __init__(self, group: int) -> None:
        self.peak_bytes = 0
        self._group = group
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._ended.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, group_bytes(self._group))

    def stop(self) -> int:
        """Stop sampling, and return the peak in bytes."""
        self._ended.set()
        self._thread.join()
        return self.peak_bytes


def group_bytes(group: int) -> int:
    """Return the bytes that the processes of a group hold together; 0 where there is no /proc."""
    total = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    total += _proportional_bytes(name)
            except OSError:  # it has ended meanwhile
                continue
    return total


def own_bytes(process: int | str) -> int:
    """Return the bytes of a process that no other one has; 0 where there is no /proc.

    Mappings that are there to be shared count for nobody: the system calls a page of them private
    for as long as one process alone has looked at it.
    """
    total, is_private = 0, False
    try:
        with open(f"/proc/{process}/smaps", encoding="utf-8", errors="replace") as file:
            for line in file:
                name, *fields = line.split()
                if not name.endswith(":"):
                    is_private = fields[0].endswith("p")
                elif is_private and name.startswith("Private_"):
                    total += int(fields[0]) * 1024
    except OSError:
        return 0
    return total


def _proportional_bytes(process: str) -> int:
    with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as file:
        for line in file:
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
