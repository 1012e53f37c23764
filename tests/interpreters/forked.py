"""Interpreters that have torch in memory: a script starts in a tenth of the time of the import.

`install` has `subprocess` and `multiprocessing` use them wherever a program is python with a
script, module or command. Tests of how an interpreter starts have the mark `executed`.
"""

from __future__ import annotations

import array
import atexit
import ctypes
import inspect
import json
import multiprocessing.util
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SERVER = Path(__file__).with_name("server.py")

AT_START = (
    r"OMP|MKL|KMP|GOMP|MALLOC|GLIBC|LD_|OPENBLAS|LC_|LANG|PYTHON(?!PATH$|UNBUFFERED$)"
    r"|TORCH(?!ELASTIC|VISION|_NCCL|_DISABLE_SHARE_RDZV|INDUCTOR_CACHE)"
)
"""Variables that are read while an interpreter starts or libraries are loaded."""

MOST_SERVERS = 4
"""The servers of a process; the one that was not used for the longest time is stopped first."""

PR_SET_CHILD_SUBREAPER = 36

SERVERS: dict[Any, Server] = {}
"""Servers by their variables of `AT_START` and their CPU mask."""

INHERITED: dict[Any, Server] = {}
"""Servers of the process that this one was forked from."""

REQUESTS: Counter[Any] = Counter()
"""How often interpreters with variables and a mask were asked for; `SERVERS` has the same keys."""

MOST_EXECUTED = 2
"""Interpreters that are executed before a server is started for others like them."""

USUAL = {
    name: value
    for name, value in os.environ.items()
    if re.match(AT_START, name) and name != "GOMP_SPINCOUNT"  # of the tests themselves
}
"""Variables of `AT_START` in the environment of the tests."""

OWNERS = ("uid", "gid", "gids", "umask")
"""Arguments of `subprocess` that have a process executed, unless they are as by default."""

LOCK = threading.Lock()

FLAGS = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
"""Options that interpreters of the tests have in common."""


class Switch:
    """Whether interpreters are forked at the moment."""

    is_on = False


class Server:
    """A process that has loaded torch, and forks others."""

    def __init__(self, environment: Mapping[str, str], *unseen: str) -> None:
        """Start the process; scripts do not see its variables `unseen`."""
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, *FLAGS, str(SERVER), str(theirs.fileno()), AT_START, *unseen],
                executable=sys.executable,  # so that it is executed
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        if self.channel.recv(64) != b"ready":
            raise RuntimeError("the server of interpreters has not started")

    def fork(self, request: Mapping[str, Any], files: Sequence[int]) -> int:
        """Return a child of this process that goes on as the interpreter that was asked for."""
        _set_subreaper(1)
        try:
            self.channel.sendmsg(
                [json.dumps(request).encode()],
                [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))],
            )
            return int(self.channel.recv(64))
        finally:
            _set_subreaper(0)

    def stop(self) -> None:
        """End the server; what it has forked goes on."""
        self.channel.shutdown(socket.SHUT_RDWR)  # processes that were forked have copies of it
        self.channel.close()
        self.process.wait()


def fork(
    argv: Sequence[str],
    files: Mapping[int, int],
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
    new_session: bool = False,
    new_group: bool = False,
    network: str | None = None,
    cpu: int | None = None,
) -> int | None:
    """Start python with a script, module or command; return its process, a child of this one.

    Return None if a server is not worth its time for so few interpreters with these variables.

    Args:
        files: The descriptors of this process that it has, by their numbers there.
        network: The network namespace that it is in, of `ip netns`.
        cpu: The only CPU that it may use.
    """
    variables = dict(os.environ if environment is None else environment)
    request = {
        "argv": argv,
        "files": list(files),
        "folder": os.fspath(folder or os.getcwd()),
        "environment": variables,
        "new_session": new_session,
        "new_group": new_group,
        "network": network,
        "cpu": cpu,
        "blocked": [*map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ()))],
        "ignored": [
            int(number)
            for number in signal.valid_signals()
            if signal.getsignal(number) is signal.SIG_IGN
        ],
    }
    with LOCK:
        found = server(variables)
        return None if found is None else found.fork(request, list(files.values()))


def server(environment: Mapping[str, str]) -> Server | None:
    """Return the server of interpreters with these variables; start it if it is worth its time."""
    at_start = {name: value for name, value in environment.items() if re.match(AT_START, name)}
    if "OMP_NUM_THREADS" not in USUAL and at_start.get("OMP_NUM_THREADS") == "1":
        # the server limits torch to one thread in the process that it forks
        environment = {**environment}
        del at_start["OMP_NUM_THREADS"], environment["OMP_NUM_THREADS"]
    key = (tuple(sorted(at_start.items())), frozenset(os.sched_getaffinity(0)))
    found = SERVERS.pop(key, None)
    if found is None:
        REQUESTS[key] += 1
        if REQUESTS[key] <= MOST_EXECUTED and at_start != USUAL:
            return None
        if len(SERVERS) >= MOST_SERVERS:
            SERVERS.pop(next(iter(SERVERS))).stop()
        kept = {
            name: value
            for name, value in environment.items()
            # torch's compiler, which the server loads, reads CXX: one test's is not another's
            if name not in {"PYTHONPATH", "PYTHONUNBUFFERED", "CXX"}
            and not name.startswith("CPUTRAIN")
        }
        if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & kept.keys():
            found = Server(kept)
        else:  # threads that spin would take the cores from other tests
            found = Server({**kept, "GOMP_SPINCOUNT": "0"}, "GOMP_SPINCOUNT")
    SERVERS[key] = found
    return found


def without_taskset(argv: list[str]) -> tuple[list[str], int | None]:
    """Return the program that `taskset -c CPUS` starts, and its CPU; as it is with more of them."""
    if argv[:2] != ["taskset", "-c"]:
        return argv, None
    cpus = {int(cpu) for cpu in argv[2].split(",") if cpu.isdecimal()}
    if cpus == os.sched_getaffinity(0):
        return argv[3:], None
    return (argv[3:], cpus.pop()) if argv[2].isdecimal() else (argv, None)


def is_script(argv: Sequence[str]) -> bool:
    """Return whether a program is python with a script, module or command and no options."""
    words = list(argv)
    if words[:1] != [sys.executable]:
        return False
    words = words[1 + len(FLAGS) if words[1 : 1 + len(FLAGS)] == FLAGS else 1 :]
    while words[:1] and words[0] in {"-P", "-u"}:
        words = words[1:]
    return bool(words) and (not words[0].startswith("-") or words[0] in {"-c", "-m"})


@atexit.register
def stop() -> None:
    """Stop all servers."""
    while SERVERS:
        SERVERS.popitem()[1].stop()


def install() -> None:
    """Have `subprocess` and `multiprocessing` fork interpreters while `Switch.is_on`."""
    execute = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(execute)
    spawn = multiprocessing.util.spawnv_passfds

    def execute_child(self: Any, *given: Any) -> None:
        options = signature.bind(self, *given).arguments
        argv = options["args"]
        argv = [os.fspath(argv)] if isinstance(argv, str | bytes | os.PathLike) else list(argv)
        in_network = argv[:3] == ["ip", "netns", "exec"]
        network = argv[3] if in_network else None
        argv = argv[4:] if in_network else argv
        argv, cpu = without_taskset(argv)
        if (
            not Switch.is_on
            or options["shell"]
            or options["executable"] is not None
            or options["preexec_fn"] is not None
            or not options["close_fds"]
            or any(options[name] not in {None, -1} for name in OWNERS)
            or options["process_group"] > 0
            or not is_script(argv := [os.fspath(word) for word in argv])
        ):
            execute(self, *given)
            return
        names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        pipes = [options[name] for name in names]
        files = {number: number for number in (0, 1, 2, *options["pass_fds"])}
        for number, pipe in enumerate((pipes[0], pipes[3], pipes[5])):
            if pipe != -1:
                files[number] = pipe
        pid = fork(
            argv,
            files,
            environment=options["env"],
            folder=options["cwd"],
            new_session=options["start_new_session"],
            new_group=options["process_group"] == 0,
            network=network,
            cpu=cpu,
        )
        if pid is None:
            execute(self, *given)
            return
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*pipes)

    def spawn_with(path: Any, words: Any, passed: Any) -> int:
        argv = [os.fsdecode(word) for word in words]
        if not Switch.is_on or os.fsdecode(path) != sys.executable or not is_script(argv):
            return spawn(path, words, passed)
        pid = fork(argv, {number: number for number in (0, 1, 2, *passed)})
        return spawn(path, words, passed) if pid is None else pid

    def leave_servers_to_parent() -> None:
        """Do not use the parent's servers: the processes that they fork are its children."""
        Switch.is_on = False
        INHERITED.update(SERVERS)
        SERVERS.clear()

    os.register_at_fork(after_in_child=leave_servers_to_parent)
    subprocess.Popen._execute_child = execute_child  # type: ignore[attr-defined]
    multiprocessing.util.spawnv_passfds = spawn_with


def _set_subreaper(value: int) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, value, 0, 0, 0)
