"""Six causes for which a network does not reach the speed that is in the box, one file each."""

from __future__ import annotations

from cputrain.diagnose.causes import code, memory, overlap, units, waiting, work

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.diagnose.finding import Cause

CAUSES: tuple[Cause, ...] = (memory, work, waiting, overlap, units, code)

__all__ = ["CAUSES", "code", "memory", "overlap", "units", "waiting", "work"]
