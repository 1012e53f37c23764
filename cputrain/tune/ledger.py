"""Ledger of trials: their durations, start-up times and loss differences, by settings."""

from __future__ import annotations

from statistics import median

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputrain.tune.trial import TrialOutcome

    Settings = Mapping[str, str]
    Key = tuple[tuple[str, str], ...]


class Ledger:
    """Step times, and maximum duration, start-up time and loss difference, by settings."""

    def __init__(self) -> None:
        self._costs_s: dict[Key, float] = {}
        self._startups_s: dict[Key, float] = {}
        self._differences: dict[Key, float] = {}
        self._step_times_s: dict[Key, list[float]] = {}

    def add(self, settings: Settings, outcome: TrialOutcome, difference: float | None) -> None:
        """Record a trial and the largest difference of its losses from plain python's."""
        key = _key(settings)
        if not outcome.fault:
            self._step_times_s.setdefault(key, []).append(outcome.step_s)
        for maxima, value in (
            (self._costs_s, outcome.elapsed_s),
            (self._startups_s, outcome.startup_s),
            (self._differences, difference),
        ):
            if value is not None:
                maxima[key] = max(maxima.get(key, 0.0), value)

    def step_times_s(self, settings: Settings) -> list[float]:
        """Return the step time of each trial with the settings that did not fail."""
        return self._step_times_s.get(_key(settings), [])

    def median_cost_s(self) -> float:
        """Return the median duration of a trial: the estimate for settings that have not run."""
        return median(list(self._costs_s.values()))

    def estimated_cost_s(self, settings: Settings) -> float:
        """Return the expected duration of a trial: no less than with any of its settings alone."""
        default = self.median_cost_s()
        return max(self._costs_s.get(key, default) for key in _keys_with_parts(settings))

    def startup_delay_s(self, settings: Settings) -> float:
        """Return by how much the first timed step is later than with the rule-based plan."""
        startup_s = max(self._startups_s.get(key, 0.0) for key in _keys_with_parts(settings))
        return max(0.0, startup_s - self._startups_s.get((), 0.0))

    def loss_difference(self, settings: Settings) -> float | None:
        """Return the largest difference of losses; None if none were compared."""
        return self._differences.get(_key(settings))


def _key(settings: Settings) -> Key:
    return tuple(sorted(settings.items()))


def _keys_with_parts(settings: Settings) -> list[Key]:
    """Return the key of the settings, and the key of each setting alone."""
    return [_key(settings), *((pair,) for pair in settings.items())]
