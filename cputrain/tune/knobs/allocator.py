"""Candidates for `allocator`: those that are installed."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.tune.candidates import Situation

KNOB = "allocator"
IN_STEPS = False


def values(situation: Situation) -> list[str]:
    """Return the allocators that can be preloaded, and the system's default."""
    return [*situation.machine.preloads, "default"]
