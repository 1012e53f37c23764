"""Peak memory of a process and its descendants.

Proportional set sizes (PSS) are summed, so a page shared by forked workers counts once. Reading PSS
is expensive in the kernel, so it is sampled only on request.
"""

from __future__ import annotations

import os
import threading

INTERVAL_S = 0.1
"""Time between two samples."""


class TreeMemory:
    """Thread that samples the memory of a process group until it is stopped."""

    def __init__(self, process_group: int) -> None:
        self.peak_bytes = 0
        """Largest sum of PSS in any sample."""
        self._process_group = process_group
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._is_stopped.wait(INTERVAL_S):
            self.peak_bytes = max(self.peak_bytes, group_bytes(self._process_group))

    def stop(self) -> int:
        """Stop sampling and return the peak in bytes."""
        self._is_stopped.set()
        self._thread.join()
        return self.peak_bytes


def group_bytes(process_group: int) -> int:
    """Return the sum of PSS over a process group in bytes; 0 without /proc."""
    total = 0
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    fields = file.read().rpartition(")")[2].split()
                if int(fields[2]) == process_group:
                    total += _proportional_bytes(name)
            except OSError:  # the process has exited
                continue
    return total


def private_bytes(process: int | str) -> int:
    """Return the private memory of a process in bytes; 0 without /proc.

    Shared mappings are excluded: the kernel reports a page of them as private while only one
    process maps it.
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
