"""Decide whether another job fits in memory, and which one to stop when memory runs out."""

from __future__ import annotations

from cputrain.many.job_process import JobProcess
from cputrain.runtime.memory_pressure import MemoryPressure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.many.job import Job, Outcome

RESERVE_FRACTION = 0.05
"""Part of the memory that stays free."""

MAX_RESERVE_BYTES = 2 << 30
"""Upper bound of that part."""

UNKNOWN_BYTES = 1 << 30
"""Memory that a job is expected to need while none has run."""

HEADROOM = 1.1
"""Factor on the largest peak so far, for the next job."""


class MemoryBudget:
    """Available memory, and the peaks of the jobs so far.

    Args:
        total_bytes: Memory that this process may use; None if it is unknown.
        limit_bytes: Memory that all jobs together may use; None for what is available.
    """

    def __init__(self, total_bytes: int | None, limit_bytes: int | None = None) -> None:
        self._pressure = MemoryPressure()
        self._limit_bytes = limit_bytes
        if limit_bytes is not None:
            total_bytes = min(limit_bytes, total_bytes or limit_bytes)
        self._reserve_bytes = min(MAX_RESERVE_BYTES, int(RESERVE_FRACTION * (total_bytes or 0)))
        self._largest_peak = 0

    def ended(self, outcome: Outcome) -> None:
        """Learn from the peak of a job that has ended."""
        if not outcome.reason:
            self._largest_peak = max(self._largest_peak, outcome.peak_bytes)

    def expected(self, job: Job, running: Sequence[JobProcess]) -> int:
        """Return the memory that a job is expected to need."""
        if job.memory_bytes is not None:
            return job.memory_bytes
        peak = max([self._largest_peak, *(process.peak_bytes for process in running)], default=0)
        return int(HEADROOM * peak) or UNKNOWN_BYTES

    def fits(self, job: Job, running: Sequence[JobProcess]) -> bool:
        """Return whether a job may be started beside those that run."""
        available = self._available_bytes(running)
        if available is None or not running:
            return True
        growth = sum(
            max(0, self.expected(process.job, running) - process.memory_bytes)
            for process in running
        )
        return available - growth - self._reserve_bytes >= self.expected(job, running)

    def excess(self, running: Sequence[JobProcess]) -> JobProcess | None:
        """Return the job to stop if memory is nearly used up: the one that grew most beyond."""
        available = self._available_bytes(running)
        if available is None or available >= self._reserve_bytes:
            return None
        if not running or any(process.stop_reason for process in running):
            return None  # one that was stopped is about to free its memory
        return max(running, key=lambda process: self._beyond(process, running))

    def _available_bytes(self, running: Sequence[JobProcess]) -> int | None:
        """Return the memory that jobs may still take; None if it is unknown."""
        available = self._pressure.available_bytes()
        if self._limit_bytes is None:
            return available
        left = self._limit_bytes - sum(process.memory_bytes for process in running)
        return left if available is None else min(left, available)

    def _beyond(self, process: JobProcess, running: Sequence[JobProcess]) -> tuple[int, float]:
        """Return by how much a job exceeds what it needs, or others need; then when it began."""
        peaks = [neighbor.peak_bytes for neighbor in running if neighbor is not process]
        usual = process.job.memory_bytes or self._largest_peak or min(peaks, default=0)
        return process.memory_bytes - usual, process.started_at
