"""Processes and descriptors of this process, for tests that nothing is left of them."""

from __future__ import annotations

from contextlib import suppress
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from tests.interpreters.forked import SERVERS


def children() -> set[int]:
    """Return the children of this process, without those that serve all tests.

    These are what starts the interpreters of scripts, and Python's own tracker of shared memory.
    """
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    tracker: Any = resource_tracker._resource_tracker  # type: ignore[attr-defined]
    return found - {server.process.pid for server in SERVERS.values()} - {tracker._pid}


def descriptors() -> dict[str, str]:
    """Return what is open, without the channels to the servers of interpreters."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found[entry.name] = str(entry.readlink())
    for server in SERVERS.values():
        found.pop(str(server.channel.fileno()), None)
    return found
