"""Decide how many cores each job gets, by the steps per second that running jobs reach.

A job on one core loses nothing to synchronization, and jobs beside one another share caches and
memory bandwidth. Which loss is smaller depends on the network and the machine. So a few of the
first jobs get 2, 4, … cores, and later ones the number with the most steps per second and core.
"""

from __future__ import annotations

from math import isqrt
from statistics import median

from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

MARGIN = 1.05
"""Factor by which more cores for each job must be faster to be preferred to fewer."""

JOBS_FOR_TRIAL = 16
"""Waiting jobs for each core of a trial: one on n cores costs at most the time of n others."""

MIN_STEP_S = 0.003
"""Seconds of a step for each core that computes it: shorter steps gain nothing from more cores."""


class JobRate(Record):
    """Speed of a job."""

    cores: int
    """Cores that it runs on."""

    steps_per_s: float
    """Steps per second, or jobs per second if it counts no steps."""

    has_steps: bool = True
    """Whether steps are counted."""


class CoresPerJob:
    """Rates so far, and the number of cores that follows from them.

    Args:
        num_cores: Number of cores of the queue.
    """

    def __init__(self, num_cores: int) -> None:
        self._num_cores = num_cores
        self._rates: dict[int, list[JobRate]] = {}
        self._tried = {1}

    def started(self, cores: int) -> None:
        """Note that a job runs on that many cores: it is not tried again."""
        self._tried.add(cores)

    def add(self, rate: JobRate) -> None:
        """Add the rate of a job that has ended."""
        self._rates.setdefault(rate.cores, []).append(rate)

    def next(self, num_waiting: int, num_free: int, running: Iterable[JobRate] = ()) -> int:
        """Return the number of cores for the next job; more than are free if it should wait.

        Args:
            num_waiting: Jobs that wait, the next included.
            num_free: Cores that are free.
            running: Rates of jobs that run.
        """
        speeds = self._speeds(running)
        best = self._best(speeds)
        trial = self._trial(best, num_waiting)
        if trial:
            return trial
        share = num_free // max(1, num_waiting)  # the last jobs get what would be idle
        return max(best, min(share, self._useful(speeds)))

    def _speeds(self, running: Iterable[JobRate]) -> dict[int, float]:
        """Return the median steps per second by number of cores."""
        rates = {cores: list(some) for cores, some in self._rates.items()}
        for rate in running:
            rates.setdefault(rate.cores, []).append(rate)
        kinds = {rate.has_steps for some in rates.values() for rate in some}
        return {
            cores: median(values)
            for cores, some in rates.items()
            # steps and jobs are not compared
            if (values := [rate.steps_per_s for rate in some if rate.has_steps is max(kinds)])
        }

    def _best(self, speeds: dict[int, float]) -> int:
        """Return the number of cores with the most steps per second and core."""
        best = 1
        for cores in sorted(speeds) if best in speeds else ():
            if speeds[cores] / cores > MARGIN * speeds[best] / best:
                best = cores
        return best

    def _trial(self, best: int, num_waiting: int) -> int:
        """Return a number of cores to try; 0 if too few jobs wait, or none is promising.

        At first 2, 4, … up to the root of the number of cores are tried, later twice the best.
        """
        candidates = [
            2 * best,
            *(1 << bit for bit in range(1, isqrt(self._num_cores).bit_length())),
        ]
        for cores in candidates:
            if cores in self._tried or cores > self._num_cores:
                continue
            if num_waiting >= JOBS_FOR_TRIAL * cores:
                return cores
        return 0

    def _useful(self, speeds: dict[int, float]) -> int:
        """Return the largest number of cores from which a job gains, as far as that is known."""
        if not speeds:
            return self._num_cores
        fastest = max(speeds, key=lambda cores: speeds[cores])
        if fastest < max(speeds):
            return fastest
        return max(fastest, int(fastest / speeds[fastest] / MIN_STEP_S))
