"""Seven causes of slow training steps, one module each, whose `find` yields findings."""

from __future__ import annotations

from cputrain.diagnose.causes import capacity, code, memory, overlap, units, waiting, work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.finding import Cause

CAUSES: tuple[Cause, ...] = (memory, capacity, work, waiting, overlap, units, code)
"""Modules of all causes."""

__all__ = [
    "CAUSES",
    "capacity",
    "code",
    "memory",
    "overlap",
    "units",
    "waiting",
    "work",
]
