"""Candidates for `huge_pages`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "huge_pages"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """Return off, if the rule-based plan has huge pages."""
    return ["off"] if situation.plan.value("huge_pages") else []
