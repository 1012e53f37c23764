"""How much time looking for faster settings may cost, and what it has cost."""

from __future__ import annotations

SHARE = 0.02
"""Share of the time of the steps so far that looking may cost."""

MAX_STEPS = 1000
"""Number of steps after which the allowance grows by savings only."""

SHARE_OF_SAVINGS = 0.5
"""Share of the time saved so far that further looking may cost."""


class Allowance:
    """Account of a run, in seconds.

    Args:
        step_s: Time of a step before anything was changed.
    """

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self.num_steps = 0
        """Whole steps of the run so far."""
        self.lost_s = 0.0
        """Time that candidates and comparisons have cost."""
        self.saved_s = 0.0
        """Time that settings which stayed have saved."""

    @property
    def left_s(self) -> float:
        """Seconds that looking may still cost; negative if it has cost too much."""
        steps = min(self.num_steps, MAX_STEPS)
        return SHARE * steps * self._step_s + SHARE_OF_SAVINGS * self.saved_s - self.lost_s

    @property
    def is_spent(self) -> bool:
        """Whether nothing is left that may still grow."""
        return self.num_steps >= MAX_STEPS and not self.saved_s

    def add_step(self, gained_s: float) -> None:
        """Count a step, and what it gained by the settings that stayed."""
        self.num_steps += 1
        self.saved_s += gained_s

    def add_excess(self, seconds: float, usual_s: float, *, is_timed: bool) -> None:
        """Count a step with a candidate: what it took more than usual is lost.

        A timed step is counted as twice as long as usual at most: what is more than that, such as a
        validation, is not the candidate's doing.
        """
        excess_s = seconds - usual_s
        self.lost_s += min(excess_s, usual_s) if is_timed else max(0.0, excess_s)
