"""torch's own loader, where a script waits for data."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "loader"
IN_STEPS = False

WORTH = 0.05
"""Part of a step's time that must be waiting before another loader can matter."""


def values(situation: Situation) -> list[str]:
    """Off, where ours makes the script wait."""
    rules = situation.rules
    waits = sum(rules.waits) > WORTH * sum(rules.times)
    return ["off"] if waits else []
