"""Processes and descriptors of this process, for tests that nothing is left of them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.interpreters.forked import SERVERS


def children() -> set[int]:
    """Return the children of this process, without those that start the interpreters of scripts."""
    found: set[int] = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has ended meanwhile
            found.update(map(int, (task / "children").read_text().split()))
    return found - {server.process.pid for server in SERVERS.values()}


def descriptors() -> dict[str, str]:
    """Return what is open, without the channels to the servers of interpreters."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them
            found[entry.name] = str(entry.readlink())
    for server in SERVERS.values():
        found.pop(str(server.channel.fileno()), None)
    return found
