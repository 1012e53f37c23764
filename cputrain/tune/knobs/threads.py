"""Fewer threads: small tensors on many threads wait for one another more than they compute."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "threads"
IN_STEPS = True


def values(situation: Situation) -> list[str]:
    """Half as many, a quarter, …, 1."""
    found, count = [], situation.plan.value("threads") // 2
    while count >= 1:
        found.append(str(count))
        count //= 2
    return found
