"""Candidates for `threads`: fewer, as small tensors do not repay synchronizing many threads."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "threads"
IN_STEPS = True


def values(situation: Situation) -> list[str]:
    """Return half the planned number of threads, a quarter, …, 1."""
    values, count = [], situation.plan.value("threads") // 2
    while count >= 1:
        values.append(str(count))
        count //= 2
    return values
