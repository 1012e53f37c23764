"""Six causes of slow training steps, one module each, whose `find` yields findings."""

from __future__ import annotations

from cputrain.diagnose.causes import code, memory, overlap, units, waiting, work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.finding import Cause

CAUSES: tuple[Cause, ...] = (memory, work, waiting, overlap, units, code)
"""Modules of all causes."""

__all__ = ["CAUSES", "code", "memory", "overlap", "units", "waiting", "work"]
