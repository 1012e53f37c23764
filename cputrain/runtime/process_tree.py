"""Count the processes of one launch, which share the budget for kept memory."""

from __future__ import annotations

import os

from cputrain import variables
from cputrain.machine.ranks import read_rank

PF_FORKNOEXEC = 0x40
"""Flag of a process that was forked and has not called exec since (linux/sched.h)."""


def num_programs() -> int:
    """Return how many programs the launch of this process runs now; at least 1.

    Forked processes without exec, such as DataLoader workers, are not counted. For a rank, only
    its own descendants count, as its plan is for a rank's share of the machine. The result is 1
    without /proc.
    """
    parents: dict[int, int] = {}
    executed: set[int] = set()
    try:
        names = os.listdir("/proc")
    except OSError:  # not Linux
        return 1
    for name in names:
        if name.isdecimal():
            try:
                parent, is_forked = read_process(int(name))
            except OSError:  # it has ended meanwhile
                continue
            parents[int(name)] = parent
            if not is_forked:
                executed.add(int(name))
    root = _root(os.getpid(), parents)
    return max(1, sum(_is_below(process, root, parents) for process in executed))


def read_process(process: int) -> tuple[int, bool]:
    """Return a process's parent, and whether it was forked and has not called exec since.

    Raises:
        OSError: There is no such process, or no /proc.
    """
    with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[1]), bool(int(fields[6]) & PF_FORKNOEXEC)


def _root(process: int, parents: dict[int, int]) -> int:
    """Return the most distant ancestor that was started with a plan for the same rank."""
    rank = read_rank(_environment(process))
    while parent := parents.get(process, 0):
        environment = _environment(parent)
        if variables.PLAN not in environment or read_rank(environment) != rank:
            break
        process = parent
    return process


def _environment(process: int) -> dict[str, str]:
    """Return the environment that a process was started with; empty if it cannot be read."""
    try:
        with open(f"/proc/{process}/environ", encoding="utf-8", errors="replace") as file:
            entries = file.read().split("\0")
    except OSError:  # another user's process, or it has ended
        return {}
    return {name: value for name, _, value in (entry.partition("=") for entry in entries)}


def _is_below(process: int, root: int, parents: dict[int, int]) -> bool:
    while process and process != root:
        process = parents.get(process, 0)
    return process == root
