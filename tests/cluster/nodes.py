"""Two nodes, each a network namespace of this machine: they meet, one is killed, and comes back.

    python -m pytest tests/cluster/nodes.py

A command of its own, not yet one of all tests: where the first node is through before the second is
back, the second waits for it in vain.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.programs import LAUNCH, environment, plain

RANKS = str(Path(__file__).parents[2] / "examples" / "ranks.py")

WIRE = str(Path(__file__).with_name("wire.py"))

ADDRESSES = ("10.77.0.1", "10.77.0.2")

STEPS = 60

PATIENCE = 240.0
"""Seconds; each step has several exchanges, and each of them waits for the wire."""

pytestmark = pytest.mark.skipif(
    os.getuid() != 0 or not shutil.which("ip") or not os.path.exists("/dev/net/tun"),
    reason="needs root, ip and /dev/net/tun, to make a network",
)


@pytest.fixture
def nodes():
    """Names of two namespaces."""
    names = tuple(f"cputrain{os.getpid()}{end}" for end in "ab")
    with contextlib.ExitStack() as after:
        for name in names:
            subprocess.run(["ip", "netns", "add", name], check=True)
            after.callback(subprocess.run, ["ip", "netns", "del", name], check=True)
        yield names


@contextlib.contextmanager
def wire(nodes, delay, loss):
    (one, other), (here, there) = nodes, ADDRESSES
    words = [sys.executable, WIRE, one, here, other, there, f"--delay={delay}", f"--loss={loss}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        try:
            yield
        finally:
            process.kill()


class Node:
    """A launch in a namespace."""

    def __init__(self, folder, nodes, number):
        self._log = (folder / f"node{number}.{time.monotonic_ns()}").open("w+")
        words = (
            "--nnodes=1:2", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d",
            f"--rdzv-endpoint={ADDRESSES[0]}:29400", f"--local-addr={ADDRESSES[number]}",
            f"--rdzv-conf=is_host={int(number == 0)},last_call_timeout=2",
            RANKS, "--checkpoint", "run.pt", "--every", "4", "--steps", str(STEPS),
        )  # fmt: skip
        self.process = subprocess.Popen(
            ["ip", "netns", "exec", nodes[number], *LAUNCH, *words], cwd=folder,
            env=environment(folder, GLOO_SOCKET_IFNAME="wire"), stdout=self._log,
            stderr=self._log, start_new_session=True,
        )  # fmt: skip

    def kill(self):
        """All of it, as when its power fails."""
        for one in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if int((one / "stat").read_text().rpartition(")")[2].split()[3]) == self._session:
                    os.kill(int(one.name), signal.SIGKILL)
        self.process.wait()

    @property
    def _session(self):
        return self.process.pid

    def said(self):
        """All that it printed."""
        self._log.seek(0)
        return self._log.read()

    def close(self):
        self.kill()
        self._log.close()


def until(condition, *nodes):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, [one.said()[-3000:] for one in nodes]
        time.sleep(0.1)


@pytest.mark.parametrize(("delay", "loss"), [(0.0, 0.0), (0.05, 0.05)])
def test_a_node_that_is_killed_comes_back_and_the_losses_are_right(tmp_path, nodes, delay, loss):
    alone = json.loads(plain(tmp_path, RANKS, "--steps", str(STEPS)).stdout)["losses"]
    checkpoint = tmp_path / "run.pt"
    with contextlib.ExitStack() as after:
        after.enter_context(wire(nodes, delay, loss))
        first, second = (Node(tmp_path, nodes, number) for number in (0, 1))
        after.callback(first.close)
        after.callback(second.close)
        until(checkpoint.exists, first, second)
        second.kill()
        killed_at = checkpoint.stat().st_mtime_ns
        again = Node(tmp_path, nodes, 1)
        after.callback(again.close)
        until(lambda: first.process.poll() is not None, first, again)
        assert first.process.returncode == 0, first.said()
        until(lambda: again.process.poll() is not None, again)
        assert checkpoint.stat().st_mtime_ns > killed_at
        told = [
            json.loads(line)
            for one in (first, again)
            for line in one.said().splitlines()
            if line.startswith('{"losses"')
        ]
        assert len(told) == 1
        assert told[0]["losses"] == pytest.approx(alone, abs=1e-5)
