"""A running job, as the queue sees it: its supervisor, progress, memory and output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from cputrain.errors import ResourceError
from cputrain.many import supervisor
from cputrain.many.cores_per_job import JobRate
from cputrain.many.in_script import taken_path
from cputrain.many.job import Outcome, is_python
from cputrain.many.output import last_result
from cputrain.many.stacks import merged
from cputrain.runtime.job_progress import ProgressReader, create_progress
from cputrain.variables import COMMON_DATA, PROGRESS, STACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.machine import Cpus
    from cputrain.many.folder import Folder
    from cputrain.many.job import Job

WARM_STEPS = 5
"""Steps that are not timed: compilers and caches warm up."""

MIN_TIMED_S = 1.0
"""Seconds of timed steps from which a rate counts."""

SUPERVISOR_KILLED = "its supervisor was killed"
"""Reason of the end of a job whose processes were killed with the supervisor."""


class JobProcess:
    """A job with its supervisor, or several jobs that one process of their script trains.

    Args:
        jobs: The job, or those of one process.
        folder: Where its files are.
        cores: Logical CPUs of each core that it runs on.
        attempt: Number of the attempt, from 1.
        launch_options: Options of `cputrain launch`.
        common_data: Path of the file for data that several jobs have; empty for none.
        is_alone: Whether no other job is to run beside it.

    Raises:
        ResourceError: The system refused a process, a file or memory.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        folder: Folder,
        cores: Sequence[Cpus],
        *,
        attempt: int,
        launch_options: Sequence[str],
        common_data: str = "",
        is_alone: bool = False,
    ) -> None:
        self.jobs = tuple(jobs)
        self.job = merged(jobs)
        """What its process is, by its name and needs."""
        self.cores = tuple(cores)
        self.attempt = attempt
        self.is_alone = is_alone
        """Whether no other job is to run beside it."""
        self._common_data = common_data
        self.memory_bytes = 0
        """Memory of its processes when it was last measured."""
        self.peak_bytes = 0
        """Largest memory so far."""
        self.stop_reason = ""
        """Why the queue has stopped it; empty while it has not."""
        self.log = folder.log(jobs[0])
        self._first_timed: tuple[float, int] | None = None
        self._buffer = b""
        try:
            self._start(folder, launch_options)
        except OSError as error:
            what = f"the job {self.job.name}"
            raise ResourceError.of(error, what, "could not be started") from None

    def _start(self, folder: Folder, launch_options: Sequence[str]) -> None:
        first = self.jobs[0]
        path = folder.progress(first)
        stack = self._write_stack(folder) if len(self.jobs) > 1 else ""
        create_progress(path)
        self._progress = ProgressReader(path)
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        try:
            request = {
                "command": self._command(launch_options),
                "cpus": sorted(cpu for core in self.cores for cpu in core),
                "cores": len(self.cores),
                "attempt": self.attempt,
                "timeout_s": self.job.timeout_s,
                "log": self.log,
                "outcomes": [(job.key, folder.outcome(job)) for job in self.jobs],
                "taken": taken_path(stack),
                "progress": path,
                "requests_fd": requests,
                "answers_fd": answers,
            }
            self.started_at = time.monotonic()
            self.supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", supervisor.__file__, json.dumps(request)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._environment(path, stack),
                pass_fds=(requests, answers),
                start_new_session=True,
            )
        except OSError:
            os.close(self._requests)
            os.close(self._answers)
            self._progress.close()
            raise
        finally:
            os.close(requests)
            os.close(answers)

    def _command(self, launch_options: Sequence[str]) -> list[str]:
        """Return the command line of `cputrain launch` for the job."""
        # -P: modules of the working folder must not shadow those that the launcher imports
        launch = [sys.executable, "-P", "-m", "cputrain.launch", "launch", *launch_options]
        return [*launch, *self.job.target.launch_words]

    def _write_stack(self, folder: Folder) -> str:
        """Write the arguments of all jobs for the script, and let them have one log."""
        first, *others = self.jobs
        with open(folder.log(first), "ab"):
            pass
        for job in others:
            folder.share_log(first, job)
        path = folder.stack(first)
        with suppress(FileNotFoundError):
            os.unlink(taken_path(path))
        with open(path, "w", encoding="utf-8") as file:
            json.dump([job.target.arguments for job in self.jobs], file)
        return path

    def _environment(self, progress_path: str, stack: str) -> dict[str, str]:
        environment = {**os.environ, **self.job.variables, PROGRESS: progress_path}
        if stack:
            environment[STACK] = stack
        if self._common_data:
            environment[COMMON_DATA] = self._common_data
        if is_python(self.job.target):
            environment.setdefault("PYTHONUNBUFFERED", "1")  # the table shows what is printed
        return environment

    def fileno(self) -> int:
        """Return the descriptor that is readable when the job has ended."""
        return self._answers

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self._progress.steps

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self.started_at

    def rate(self) -> JobRate | None:
        """Return its speed; None while too few steps are timed."""
        steps, now = self.steps, time.monotonic()
        if self._first_timed is None:
            if steps >= WARM_STEPS:
                self._first_timed = (now, steps)
            return None
        since, first = self._first_timed
        if now - since < MIN_TIMED_S or steps == first:
            return None
        return JobRate(cores=len(self.cores), steps_per_s=(steps - first) / (now - since))

    def stop(self, number: signal.Signals, grace_s: float, reason: str) -> None:
        """Send a signal to its processes, and SIGKILL to those left after the grace period."""
        self.stop_reason = self.stop_reason or reason
        request = {"signal": int(number), "grace_s": grace_s, "reason": reason}
        try:
            os.write(self._requests, json.dumps(request).encode() + b"\n")
        except BrokenPipeError:  # it has ended meanwhile
            return

    def read_answer(self) -> Outcome | None:
        """Read from the supervisor; return the outcome once the process has ended.

        It is that of the first job; `outcome_of` has those of the others.
        """
        data = os.read(self._answers, 65536)
        self._buffer += data
        if b"\n" not in self._buffer and data:
            return None
        self.supervisor.wait()
        document: dict[str, Any] = {}
        if b"\n" in self._buffer:
            document = json.loads(self._buffer)
        outcome = Outcome(
            exit_code=document.get("exit_code", 128 + signal.SIGKILL),
            elapsed_s=document.get("elapsed_s", self.elapsed_s),
            cpu_s=document.get("cpu_s", 0.0),
            steps=document.get("steps", self.steps),
            peak_bytes=self.peak_bytes or document.get("peak_bytes", 0),
            cores=len(self.cores),
            attempts=self.attempt,
            reason=document.get("reason", SUPERVISOR_KILLED),
            stacked=document.get("stacked", len(self.jobs)),
        )
        self._close()
        return self.outcome_of(0, outcome)

    def outcome_of(self, place: int, outcome: Outcome) -> Outcome:
        """Return the outcome of one of the process's jobs, with what was printed for it."""
        values = last_result(
            self.log, has_failed=not outcome.is_success, stacked=outcome.stacked, place=place
        )
        return outcome.replace(place=place, **values)

    def _close(self) -> None:
        os.close(self._requests)
        os.close(self._answers)
        self._progress.close()
