"""Turns A B A: is a candidate faster than what runs now, by the times of whole steps?

A phase of steps with the candidate (B) lies between two without it (A), so that a machine that gets
busy or slow over time does so for both. Nothing here knows what a candidate is.
"""

from __future__ import annotations

from math import ceil
from statistics import median

PHASE_S = 0.25
"""Seconds of timed steps that a phase lasts, within the limits of their number."""

MIN_TIMED = 3
MAX_TIMED = 25
"""Least and largest number of timed steps of a phase."""

MIN_TURNS = 2
MAX_TURNS = 5
"""Turns before a candidate may win, and those after which it has lost."""

MIN_GAIN = 0.015
"""Least gain that is worth a switch, and the least noise that is assumed."""

CLEARLY_SLOWER = 1.12
"""Times the step without the candidate; two timed steps above it are enough to stop."""

MUCH_SLOWER = 1.5
"""The same for one timed step and the one before it, which is not timed."""


class Turns:
    """The phases of one candidate.

    Args:
        step_s: Median time of a step without the candidate.
        num_settling: Steps after each switch that are not timed, as they may build or move what
            the next ones use.
    """

    def __init__(self, step_s: float, num_settling: int = 1) -> None:
        self._num_settling = num_settling
        self._num_timed = min(MAX_TIMED, max(MIN_TIMED, ceil(PHASE_S / step_s)))
        self._phases: list[list[float]] = [[]]
        self._num_skipped = num_settling
        """Steps of this phase that were not timed; the first phase needs no settling."""
        self._last_skipped_s = 0.0
        self.step_s = step_s
        """Median time of a step without the candidate, in the latest phase."""
        self.candidate_s = 0.0
        """Median time of a step with it, in the latest phase."""
        self.latest = 0.0
        """Speed-up in the latest turn, or in one that was broken off."""
        self.ratios: list[float] = []
        """Speed-up of the candidate in each turn."""
        self._drifts: list[float] = []

    @property
    def is_candidate(self) -> bool:
        """Whether the next step runs with the candidate."""
        return len(self._phases) % 2 == 0

    @property
    def is_settled(self) -> bool:
        """Whether the next step is timed."""
        return self._num_skipped == self._num_settling

    @property
    def gain(self) -> float:
        """Median of the turns' speed-ups."""
        return median(self.ratios)

    def add(self, seconds: float) -> bool | None:
        """Add the time of a step; return whether the candidate has won, None while it is open."""
        if self._num_skipped < self._num_settling:
            self._num_skipped += 1
            self._last_skipped_s = seconds
            return None
        phase = self._phases[-1]
        phase.append(seconds)
        if self.is_candidate and self._is_slower(phase):
            return False
        if len(phase) < self._num_timed:
            return None
        verdict = self._end_phase(median(phase))
        self._phases.append([])
        self._num_skipped = 0
        return verdict

    def _is_slower(self, phase: list[float]) -> bool:
        fastest = min(phase)
        self.latest = self.step_s / fastest
        return min(fastest, self._last_skipped_s) > MUCH_SLOWER * self.step_s or (
            len(phase) > 1 and fastest > CLEARLY_SLOWER * self.step_s
        )

    def _end_phase(self, phase_s: float) -> bool | None:
        if self.is_candidate:
            self.candidate_s = phase_s
            return None
        before_s, self.step_s = self.step_s, phase_s
        if not self.candidate_s:  # the first phase
            return None
        self.latest = (before_s + phase_s) / 2 / self.candidate_s
        self.ratios.append(self.latest)
        self._drifts.append(abs(phase_s / before_s - 1))
        if self.ratios[-1] <= 1:
            return False
        noise = max(MIN_GAIN, median(self._drifts))
        if len(self.ratios) >= MIN_TURNS and min(self.ratios) - 1 > noise:
            return True
        return False if len(self.ratios) == MAX_TURNS else None
