"""State of a queue at one moment, as a table shows it."""

from __future__ import annotations

from statistics import median

from cputrain.many.job import JobState
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.many.job import Outcome
    from cputrain.many.job_process import JobProcess


class RunningJob(Record):
    """A job that runs."""

    name: str
    """What it is called."""

    cores: int
    """Cores that it runs on."""

    elapsed_s: float
    """Seconds since it was started."""

    steps: int
    """Optimizer steps so far; 0 if it takes none."""

    steps_per_s: float | None
    """Steps per second; None while unknown."""

    loss: Any
    """Loss in its output; None if it prints none."""

    memory_bytes: int
    """Memory of its processes."""

    left_s: float | None
    """Seconds until it is likely to end; None while unknown."""


class QueueSnapshot(Record):
    """State of a queue."""

    counts: dict[JobState, int]
    """Number of jobs in each state."""

    running: tuple[RunningJob, ...]
    """Jobs that run, in the order in which they were started."""

    elapsed_s: float
    """Seconds since the queue was started."""

    left_s: float | None
    """Seconds until the queue is likely to end; None while unknown."""

    is_stopping: bool = False
    """Whether no more jobs are started."""


class TimeLeft:
    """Estimates of the time that jobs and the queue still take, from the jobs that have ended."""

    def __init__(self) -> None:
        self._steps: list[int] = []
        self._core_s: list[float] = []

    def add(self, outcome: Outcome) -> None:
        """Learn from a job that has ended by itself."""
        if outcome.is_success:
            self._core_s.append(outcome.elapsed_s * max(1, outcome.cores) / outcome.stacked)
            if outcome.steps:
                self._steps.append(outcome.steps)

    def of_job(self, process: JobProcess) -> float | None:
        """Return the seconds that a running job still takes; None while unknown."""
        rate = process.rate()
        if rate is not None and self._steps:
            left = median(self._steps) * len(process.jobs) - process.steps
            return max(0.0, left) / rate.steps_per_s
        if self._core_s:
            core_s = median(self._core_s) * len(process.jobs)
            return max(0.0, core_s / len(process.cores) - process.elapsed_s)
        return None

    def of_queue(
        self, running: Sequence[JobProcess], num_waiting: int, num_cores: int
    ) -> float | None:
        """Return the seconds until all jobs have ended; None while unknown."""
        left = [self.of_job(process) for process in running]
        known = [seconds for seconds in left if seconds is not None]
        if len(known) < len(left) or (num_waiting and not self._core_s):
            return None
        core_s = sum(
            seconds * len(process.cores) for seconds, process in zip(known, running, strict=True)
        )
        if num_waiting:
            core_s += num_waiting * median(self._core_s)
        return max([core_s / num_cores, *known], default=0.0)
