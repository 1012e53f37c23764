"""Run one job, and leave none of its processes behind, whatever happens to the queue.

The queue starts this file by its path, in an interpreter without site packages: it imports the
standard library alone, and starts in 10 ms. It is the parent of all processes of the job, also of
those that daemonize (PR_SET_CHILD_SUBREAPER). It ends when the job has ended, and kills the job
when the queue is gone.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

LEFT_BEHIND_S = 2.0
"""Seconds that processes get to end after the job's first process has ended."""

OOM_SCORE = "500"
"""The kernel ends a job before the queue or the user's other programs if memory runs out."""

QUEUE_GRACE_S = 5.0
"""Seconds that a job gets to end when its queue is gone."""


class JobSupervisor:
    """The job's first process, and what the queue asks for.

    Args:
        request: What the queue asks for: see `cputrain.many.job_process`.
    """

    def __init__(self, request: dict[str, Any]) -> None:
        self._request = request
        self._requests_fd = int(request["requests_fd"])
        self._answers_fd = int(request["answers_fd"])
        for descriptor in (self._requests_fd, self._answers_fd):
            os.set_inheritable(descriptor, False)
        self._buffer = b""
        self._deadline: float | None = None
        self._reason = ""
        self._status: int | None = None
        self._cpu_s = 0.0
        self._peak_bytes = 0
        self._is_queue_gone = False
        self._child = 0

    def run(self) -> int:
        """Start the job, wait for its end, and tell the queue."""
        libc = ctypes.CDLL(None)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the queue decides
        wakeup, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(wakeup, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        started_at = time.monotonic()
        timeout_s = self._request["timeout_s"]
        self._child = self._start(libc)
        timeout_at = None if timeout_s is None else started_at + timeout_s
        while True:
            self._reap()
            if self._status is not None:
                break
            now = time.monotonic()
            if timeout_at is not None and now >= timeout_at:
                timeout_at = None
                self._stop(signal.SIGTERM, QUEUE_GRACE_S, "timeout")
            if self._deadline is not None and now >= self._deadline:
                self._kill_all()
                self._deadline = now + 1.0
            limits = [limit for limit in (timeout_at, self._deadline) if limit is not None]
            wait_s = max(0.0, min(limits) - now) if limits else None
            watched = [wakeup] if self._is_queue_gone else [wakeup, self._requests_fd]
            readable, _, _ = select.select(watched, [], [], wait_s)
            if wakeup in readable:
                os.read(wakeup, 4096)
            if self._requests_fd in readable:
                self._read_requests()
        elapsed_s = time.monotonic() - started_at
        self._end_left_behind()
        self._answer(elapsed_s)
        return 0

    def _start(self, libc: Any) -> int:
        """Fork and execute the command; only this thread exists."""
        log = os.open(self._request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        supervisor = os.getpid()
        child = os.fork()
        if child:
            os.close(log)
            return child
        try:
            os.setpgid(0, 0)
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(125)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
                signal.signal(number, signal.SIG_DFL)
            signal.set_wakeup_fd(-1)
            with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
                file.write(OOM_SCORE)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            if self._request["cpus"]:
                os.sched_setaffinity(0, self._request["cpus"])
            command = self._request["command"]
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{self._request['command'][0]}: {error.strerror}\n".encode())
        os._exit(127)

    def _reap(self) -> None:
        """Reap all processes that have ended."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._child:
                self._status = os.waitstatus_to_exitcode(status)
                self._cpu_s += usage.ru_utime + usage.ru_stime
                self._peak_bytes = usage.ru_maxrss * 1024

    def _read_requests(self) -> None:
        """Carry out what the queue asks for; if it is gone, end the job."""
        data = os.read(self._requests_fd, 65536)
        if not data:
            self._is_queue_gone = True
            self._stop(signal.SIGTERM, QUEUE_GRACE_S, "the queue has ended")
            return
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            self._stop(request["signal"], request["grace_s"], request["reason"])

    def _stop(self, number: int, grace_s: float, reason: str) -> None:
        """Send a signal to the job's process group; kill everything after the grace period."""
        self._reason = self._reason or reason
        limit = time.monotonic() + grace_s
        self._deadline = limit if self._deadline is None else min(self._deadline, limit)
        if number == signal.SIGKILL:
            self._kill_all()
            return
        _signal(-self._child, number)

    def _kill_all(self) -> None:
        """Kill every descendant, with what they fork meanwhile."""
        descendants = self._descendants()
        for pid in descendants:
            _signal(pid, signal.SIGSTOP)  # what is stopped forks no more
        for pid in {*descendants, *self._descendants()}:
            _signal(pid, signal.SIGKILL)

    def _end_left_behind(self) -> None:
        """End the processes that have outlived the job's first one."""
        number, limit = signal.SIGTERM, time.monotonic() + LEFT_BEHIND_S
        while True:
            self._reap()
            descendants = self._descendants()
            if not descendants:
                return
            if number is signal.SIGKILL:
                self._kill_all()
            else:
                for pid in descendants:
                    _signal(pid, number)
            while time.monotonic() < limit and self._descendants():
                time.sleep(0.01)
                self._reap()
            number, limit = signal.SIGKILL, time.monotonic() + 0.1

    def _descendants(self) -> list[int]:
        """Return the living processes of the job."""
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal():
                try:
                    with open(f"/proc/{name}/stat", "rb") as file:
                        fields = file.read().rpartition(b")")[2].split()
                except OSError:  # it has ended meanwhile
                    continue
                if fields[0] != b"Z":
                    parents[int(name)] = int(fields[1])
        descendants: list[int] = []
        generation = {os.getpid()}
        while generation:
            generation = {pid for pid, parent in parents.items() if parent in generation}
            descendants += generation
        return descendants

    def _answer(self, elapsed_s: float) -> None:
        """Save the outcomes of jobs that ended by themselves, and tell the queue.

        Those of several jobs in one process that has failed are not known: each runs again.
        """
        status = self._status or 0
        outcomes = self._request["outcomes"]
        if len(outcomes) > 1 and not os.path.exists(self._request["taken"]):
            outcomes = outcomes[:1]  # the script has trained its own job alone
        outcome = {
            "exit_code": status if status >= 0 else 128 - status,
            "elapsed_s": elapsed_s,
            "cpu_s": self._cpu_s,
            "steps": self._steps() // len(outcomes),
            "peak_bytes": self._peak_bytes,
            "cores": self._request["cores"],
            "attempts": self._request["attempt"],
            "reason": self._reason,
            "stacked": len(outcomes),
        }
        if not self._reason and (status == 0 or len(outcomes) == 1):
            for place, (key, path) in enumerate(outcomes):
                self._save(path, {**outcome, "key": key, "place": place})
        if not self._is_queue_gone:
            try:
                os.write(self._answers_fd, json.dumps(outcome).encode() + b"\n")
            except OSError:  # the queue is gone
                return

    def _steps(self) -> int:
        try:
            with open(self._request["progress"], "rb") as file:
                return int.from_bytes(file.read(8), sys.byteorder)
        except OSError:
            return 0

    def _save(self, path: str, outcome: dict[str, Any]) -> None:
        """Write the outcome so that it is there whole or not at all.

        The queue, if it still runs, writes it again, and tells why it cannot be written.
        """
        temporary = f"{path}.{os.getpid()}"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(outcome, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            return


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    sys.exit(JobSupervisor(json.loads(sys.argv[1])).run())
