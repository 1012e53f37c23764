"""OpenMP's runtimes in this process: whether there are several, and threads that are let go.

Each has threads of its own: they take turns on the same cores, and with some pairs they deadlock.
Which libraries came along is known only once the script has imported everything.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

from cputrain.runtime.process_tree import read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

POLICY = "openmp"

NAMES = ("libgomp", "libiomp5", "libomp")

SOFT = 1
"""omp_pause_soft: what is let go comes back with the next operator that is divided."""


class Runtimes:
    """The OpenMP runtimes in this process."""

    def describe(self) -> str:
        loaded = sorted(path.rpartition("/")[2] for path in loaded_runtimes())
        if len(loaded) < 2:
            return ""
        return (
            f"warning: {len(loaded)} OpenMP runtimes are loaded ({', '.join(loaded)}), and their "
            "threads take turns on the same cores; import torch first, or do without the other"
        )

    def undo(self) -> None:
        """Nothing was changed."""


def loaded_runtimes() -> set[str]:
    """The files of OpenMP runtimes that are mapped here; none where there is no such list."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {"/" + line.partition("/")[2].strip() for line in maps if "/" in line}
    except OSError:  # not Linux
        return set()
    return {path for path in paths if path.rpartition("/")[2].startswith(NAMES)}


def end_team() -> None:
    """Let go of the threads that help the calling one; they are started again when it needs them.

    While libgomp has more threads in a process than there are CPUs, the waiting ones fall asleep
    almost at once, in whatever team they are, and each operator has to wake them.
    """
    for pause in _pauses(os.getpid()):
        pause(SOFT)


@cache
def _pauses(process: int) -> tuple[Any, ...]:
    found: list[Any] = []
    for path in () if _is_forked(process) else loaded_runtimes():
        if path.rpartition("/")[2].startswith("libgomp"):
            # a file that was replaced meanwhile, or a libgomp from before OpenMP 5.0
            with suppress(OSError, AttributeError):
                found.append(ctypes.CDLL(path).omp_pause_resource_all)
    return tuple(found)


def _is_forked(process: int) -> bool:
    """Whether it has begun in the middle of another: libgomp may wait there for threads that only
    that one has."""
    try:
        return read_process(process)[1]
    except OSError:  # not Linux
        return True


def apply(torch: ModuleType, value: object) -> Runtimes:  # noqa: ARG001  (it only looks)
    """Look once the script has ended."""
    return Runtimes()
