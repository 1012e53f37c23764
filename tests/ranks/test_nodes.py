"""Two nodes, each a network namespace of this machine: they meet, one is gone, and comes back."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.launch.programs import LAUNCH, environment, plain

RANKS = str(Path(__file__).parents[2] / "examples" / "ranks.py")

GATED = str(Path(__file__).with_name("gated.py"))

WIRE = str(Path(__file__).with_name("wire.py"))

ADDRESSES = ("10.77.0.1", "10.77.0.2")

STEPS = 20

GATE = 8
"""The step before which one node is killed; nobody goes on alone from there."""

PATIENCE = 240.0
"""Seconds; each step has several exchanges, and each of them waits for the wire."""


class NoWireError(Exception):
    """This machine lets nobody have one."""


class Network:
    """Two namespaces, and a wire between them."""

    def __init__(self, delay, loss):
        self._names = tuple(f"cputrain{os.getpid()}{end}" for end in "ab")
        self._how = (f"--delay={delay}", f"--loss={loss}")
        with contextlib.ExitStack() as otherwise:
            for number in (0, 1):
                self._add(number)
                otherwise.callback(self._remove, number)
            self._wire = self._connect()
            otherwise.pop_all()

    def processes(self, number):
        """Those of a node."""
        words = ["ip", "netns", "pids", self._names[number]]
        return [int(one) for one in subprocess.run(words, capture_output=True).stdout.split()]

    def kill(self, number):
        """All of a node's processes; its kernel tells others that their connections are closed."""
        for pid in self.processes(number):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def fail(self, number):
        """As when its power fails: nobody is told."""
        self._disconnect()
        self.kill(number)
        self._remove(number)
        self._add(number)
        self._wire = self._connect()

    def run(self, number, words, **options):
        """A process there."""
        return subprocess.Popen(["ip", "netns", "exec", self._names[number], *words], **options)

    def close(self):
        for number in (0, 1):
            self.kill(number)
        self._disconnect()
        for number in (0, 1):
            self._remove(number)

    def _connect(self):
        ends = [word for pair in zip(self._names, ADDRESSES, strict=True) for word in pair]
        process = subprocess.Popen(
            [sys.executable, WIRE, *ends, *self._how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdout is not None
        if process.stdout.readline() != b"up\n":
            with process:
                process.kill()
            raise NoWireError("no device for the wire")
        return process

    def _disconnect(self):
        with self._wire as process:
            process.kill()

    def _add(self, number):
        subprocess.run(["ip", "netns", "add", self._names[number]], check=True)

    def _remove(self, number):
        end = time.monotonic() + 30
        while self.processes(number):
            assert time.monotonic() < end
            time.sleep(0.05)
        subprocess.run(["ip", "netns", "del", self._names[number]], check=True)


class Node:
    """A launch on one of them."""

    def __init__(self, folder, network, number, nodes="1:2"):
        self._log = folder / f"node{number}.{time.monotonic_ns()}"
        words = (
            f"--nnodes={nodes}", "--nproc-per-node=1", "--max-restarts=9", "--rdzv-backend=c10d",
            f"--rdzv-endpoint={ADDRESSES[0]}:29400", f"--local-addr={ADDRESSES[number]}",
            f"--rdzv-conf=is_host={int(number == 0)},last_call_timeout=2,keep_alive_interval=1",
            GATED, str(GATE), "--checkpoint", "run.pt", "--every", "4", "--steps", str(STEPS),
        )  # fmt: skip
        with self._log.open("w") as log:
            self.process = network.run(
                number, [*LAUNCH, *words], cwd=folder, stdout=log, stderr=log,
                env=environment(folder, GLOO_SOCKET_IFNAME="wire"),
            )  # fmt: skip

    def said(self):
        """All that it printed."""
        return self._log.read_text()


def until(condition, *nodes):
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, [one.said()[-3000:] for one in nodes]
        time.sleep(0.1)


@pytest.fixture
def network(request):
    try:
        made = Network(*request.param)
    except (OSError, subprocess.CalledProcessError, NoWireError) as error:
        pytest.skip(f"needs a network of its own: root, ip and /dev/net/tun ({error})")
    yield made
    made.close()


GOOD, BAD = (0.0, 0.0), (0.05, 0.05)
"""Seconds and part of packets."""


@pytest.mark.parametrize(
    ("network", "how"),
    [
        (GOOD, "kill"),
        pytest.param(BAD, "kill", marks=pytest.mark.long),
        pytest.param(GOOD, "fail", marks=pytest.mark.long),
    ],
    indirect=["network"],
)
@pytest.mark.long
def test_a_node_that_is_gone_comes_back_and_the_losses_are_right(tmp_path, network, how):
    alone = json.loads(plain(tmp_path, RANKS, "--steps", str(STEPS)).stdout)["losses"]
    first, second = (Node(tmp_path, network, number) for number in (0, 1))
    until((tmp_path / f"at{GATE}").exists, first, second)
    getattr(network, how)(1)
    second.process.wait()
    (tmp_path / "killed").touch()
    again = Node(tmp_path, network, 1)
    until(lambda: first.process.poll() is not None, first, again)
    assert first.process.returncode == 0, first.said()
    until(lambda: again.process.poll() is not None, again)
    told = [
        json.loads(line)
        for one in (first, again)
        for line in one.said().splitlines()
        if line.startswith('{"losses"')
    ]
    assert [one["ranks"] for one in told] == [2]
    assert told[0]["losses"] == pytest.approx(alone, abs=1e-5)


@pytest.mark.parametrize("network", [GOOD], indirect=True)
@pytest.mark.parametrize("number", [0, 1])
def test_an_interrupt_ends_the_job_on_every_node(tmp_path, network, number):
    nodes = [Node(tmp_path, network, one) for one in (0, 1)]
    until((tmp_path / f"at{GATE}").exists, *nodes)
    nodes[number].process.send_signal(signal.SIGINT)
    for one in nodes:
        assert one.process.wait(timeout=60) == 130, one.said()
    assert not any(network.processes(one) for one in (0, 1))


@pytest.mark.parametrize("network", [GOOD], indirect=True)
def test_those_that_cannot_go_on_without_a_node_end_with_it(tmp_path, network):
    nodes = [Node(tmp_path, network, one, nodes="2") for one in (0, 1)]
    until((tmp_path / f"at{GATE}").exists, *nodes)
    nodes[1].process.terminate()
    assert nodes[1].process.wait(timeout=60) == 143
    assert nodes[0].process.wait(timeout=60) == 130, nodes[0].said()
