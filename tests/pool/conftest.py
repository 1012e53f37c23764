"""What tests of pools share: a limit on time, and nothing left behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from multiprocessing import forkserver, resource_sharer, resource_tracker
from pathlib import Path

import pytest

from tests.left_behind import children, descriptors

LIMIT = 60
"""Seconds after which a test is taken to hang."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Pools fork, and from Python 3.12 on that warns wherever a library has a thread."""
    item.add_marker(pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"))


@pytest.fixture(scope="session")
def servers() -> None:
    """Starts what multiprocessing starts once and never ends, and what torch starts so."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(
        ["__main__", "cputrain.pool.preloaded", "tests.pool.functions"]
    )
    resource_tracker.ensure_running()
    forkserver.ensure_running()
    os.close(resource_sharer.DupFd(0).detach())


@pytest.fixture
def in_time() -> Iterator[None]:
    """Fails a test that hangs."""

    def expire(*_: object) -> None:
        raise TimeoutError(f"not over after {LIMIT} seconds")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(LIMIT)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def described(pid: int) -> str:
    """Return the state and the command line of a process."""
    try:
        stat, words = (Path(f"/proc/{pid}/{name}").read_text() for name in ("stat", "cmdline"))
    except FileNotFoundError:
        return f"{pid} has ended meanwhile"
    return f"{stat} {words!r}"


@pytest.fixture
def nothing_left(servers: None, in_time: None) -> Iterator[None]:
    """Fails a test that leaves processes, descriptors or names in /dev/shm."""
    gc.collect()
    before = children(), descriptors(), set(os.listdir("/dev/shm"))
    yield
    end = time.monotonic() + 3
    while not (children() <= before[0] and len(descriptors()) <= len(before[1])):
        gc.collect()
        if time.monotonic() > end:
            break
        time.sleep(0.05)  # a thread that was not waited for may be about to end
    left = children() - before[0]
    assert not left, [described(pid) for pid in left]
    after = descriptors()
    assert len(after) <= len(before[1]), set(after.items()) - set(before[1].items())
    mine = {name for name in os.listdir("/dev/shm") if str(os.getpid()) in name}
    assert mine <= before[2]
