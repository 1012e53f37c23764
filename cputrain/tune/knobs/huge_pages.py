"""Small pages, where huge ones are asked for."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "huge_pages"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """Off, if the rules say on."""
    return ["off"] if situation.plan.value("huge_pages") else []
