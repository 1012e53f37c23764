"""Candidates for `precision`."""

from __future__ import annotations

from cputrain.plan.precision import multiplies_bf16

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "precision"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """Return the reduced precisions that the user allows and the CPU supports."""
    allowed = situation.precision != "float32" and multiplies_bf16(situation.machine)
    if not allowed:
        return []
    return ["bf16", "kernels"] if situation.precision == "bf16" else ["kernels"]
