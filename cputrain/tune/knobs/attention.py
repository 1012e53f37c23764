"""Candidates for `attention`: another kernel, or float32 under autocast."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "attention"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """Return the kernels, if the script computes attention."""
    if "attention" not in situation.rules.uses:
        return []
    return ["math"] if situation.precision == "float32" else ["float32", "math"]
