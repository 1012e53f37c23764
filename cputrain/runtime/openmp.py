"""The OpenMP runtimes of this process: warn about several, and end their threads.

Each runtime has its own thread teams: these compete for the same cores, and some pairs of runtimes
deadlock. Which of them are loaded is known only after the script has imported everything.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from functools import cache

from cputrain.runtime.process_tree import read_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = ("libgomp", "libiomp5", "libomp")

SOFT = 1
"""omp_pause_soft: the next parallel region starts the threads again."""


class Runtimes:
    """Report of the OpenMP runtimes in this process."""

    def describe(self) -> str:
        loaded = sorted(path.rpartition("/")[2] for path in loaded_runtimes())
        if len(loaded) < 2:
            return ""
        return (
            f"warning: {len(loaded)} OpenMP runtimes are loaded ({', '.join(loaded)}), and their "
            "threads take turns on the same cores; import torch first, or do without the other"
        )

    def undo(self) -> None:
        """Do nothing: nothing was changed."""


def loaded_runtimes() -> set[str]:
    """Return the files of OpenMP runtimes mapped in this process; empty if not on Linux.

    threadpoolctl takes four times as long, and 24 ms to import at the end of every script.
    """
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
            paths = {"/" + line.partition("/")[2].strip() for line in maps if "/" in line}
    except OSError:  # not Linux
        return set()
    return {path for path in paths if path.rpartition("/")[2].startswith(NAMES)}


def parallel_functions() -> tuple[int, int, int] | None:
    """Return the addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads.

    They are those of torch's OpenMP runtime; None if it has no such functions.
    """
    for path in loaded_runtimes():
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(path)
            run, thread, threads = (
                ctypes.cast(function, ctypes.c_void_p).value or 0
                for function in (
                    library.GOMP_parallel, library.omp_get_thread_num, library.omp_get_num_threads
                )
            )  # fmt: skip
            return run, thread, threads
    return None


def end_team() -> None:
    """End the calling thread's OpenMP team; the next parallel region starts it again.

    While a process has more libgomp threads than CPUs, idle threads of every team spin only briefly
    before they sleep, and each operator has to wake them.
    """
    for pause in _pause_functions(os.getpid()):
        pause(SOFT)


def end_threads() -> bool:
    """End OpenMP's threads, so that new ones inherit this thread's state; return whether it worked.

    Flush-to-zero and the memory policy belong to a thread, which inherits them at its start. Fails
    if an OpenMP runtime is loaded that cannot end its threads.
    """
    paths = loaded_runtimes()
    return bool(paths) and all("libgomp" in path and _end_threads_of(path) for path in paths)


def _end_threads_of(path: str) -> bool:
    try:
        pause = ctypes.CDLL(path).omp_pause_resource_all
    except (OSError, AttributeError):  # its file is gone, or it is older than OpenMP 5
        return False
    return bool(pause(SOFT) == 0)


@cache
def _pause_functions(process: int) -> tuple[Any, ...]:
    functions: list[Any] = []
    for path in () if _is_forked(process) else loaded_runtimes():
        if path.rpartition("/")[2].startswith("libgomp"):
            # the file was replaced since, or libgomp is older than OpenMP 5.0
            with suppress(OSError, AttributeError):
                functions.append(ctypes.CDLL(path).omp_pause_resource_all)
    return tuple(functions)


def _is_forked(process: int) -> bool:
    """Return whether a process was forked without exec.

    libgomp may wait there for threads that exist in the parent only.
    """
    try:
        return read_process(process)[1]
    except OSError:  # not Linux
        return True
