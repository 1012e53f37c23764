"""What trials took, by their settings: what another one would cost, and how late it is warm."""

from __future__ import annotations

from cputrain.bench.compare import median

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from cputrain.tune.trial import Outcome

    Settings = Mapping[str, str]
    Key = tuple[tuple[str, str], ...]


class Ledger:
    """The longest of everything that ran with the same settings."""

    def __init__(self) -> None:
        self._costs: dict[Key, float] = {}
        self._starts: dict[Key, float] = {}
        self._differences: dict[Key, float] = {}

    def add(self, settings: Settings, outcome: Outcome, difference: float | None) -> None:
        """A trial, and how far its losses were off."""
        key = _key(settings)
        for kept, value in (
            (self._costs, outcome.took),
            (self._starts, outcome.before_timed),
            (self._differences, difference),
        ):
            if value is not None:
                kept[key] = max(kept.get(key, 0.0), value)

    def usual_cost(self) -> float:
        """Seconds of a trial of which nothing is known."""
        return median(list(self._costs.values()))

    def cost(self, settings: Settings) -> float:
        """Seconds of a trial with these: at least as many as with any of them alone."""
        usual = self.usual_cost()
        return max(self._costs.get(key, usual) for key in _parts(settings))

    def later(self, settings: Settings) -> float:
        """Seconds that it loses until it is warm, against the rules, at the worst."""
        late = max(self._starts.get(key, 0.0) for key in _parts(settings))
        return max(0.0, late - self._starts.get((), 0.0))

    def difference(self, settings: Settings) -> float | None:
        """The largest of its losses, if any were compared."""
        return self._differences.get(_key(settings))


def _key(settings: Settings) -> Key:
    return tuple(sorted(settings.items()))


def _parts(settings: Settings) -> list[Key]:
    """Itself, and each of its settings alone."""
    return [_key(settings), *((pair,) for pair in settings.items())]
