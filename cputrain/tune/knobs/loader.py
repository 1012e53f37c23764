"""Candidates for `loader`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "loader"
IN_STEPS = False

WORTH = 0.05
"""Least fraction of the step time spent waiting for data at which loaders are compared."""


def values(situation: Situation) -> list[str]:
    """Return off, if the script waits for data under cputrain's loader."""
    rules = situation.rules
    waits = sum(rules.waits) > WORTH * sum(rules.times)
    return ["off"] if waits else []
