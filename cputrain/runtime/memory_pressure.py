"""Detect memory pressure of the machine or of a control group."""

from __future__ import annotations

from cputrain.machine.cgroups import UNLIMITED_BYTES, memory_groups
from cputrain.machine.numa import meminfo
from cputrain.machine.source import RootSource, number, text

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.cgroups import MemoryGroup
    from cputrain.machine.source import Source

MIN_FREE_FRACTION = 0.1
"""Fraction of memory below which free memory is short."""

MAX_STALLED_PERCENT = 10.0
"""Share of the last ten seconds with stalled processes above which memory is short."""


class MemoryPressure:
    """The /proc and cgroup files of memory pressure, located once."""

    def __init__(self, source: Source | None = None) -> None:
        self._source = source or RootSource()
        self._groups = memory_groups(self._source)

    def is_high(self) -> bool:
        """Return whether free memory is short, or processes stall on it."""
        sizes = meminfo(self._source)
        total, available = sizes.get("MemTotal"), sizes.get("MemAvailable")
        if total and available is not None and available < MIN_FREE_FRACTION * total:
            return True
        pressures = ("/proc/pressure/memory", *(group.pressure for group in self._groups))
        return any(map(self._is_full, self._groups)) or any(map(self._is_stalled, pressures))

    def available_bytes(self) -> int | None:
        """Return the memory that this process may still take; None if it is unknown."""
        available = meminfo(self._source).get("MemAvailable")
        free = [limit - used for group in self._groups for used, limit in self._use_of(group)]
        if available is not None:
            free.append(available)
        return min(free, default=None)

    def _is_full(self, group: MemoryGroup) -> bool:
        """Return whether a group is near its limit."""
        return any(used > (1 - MIN_FREE_FRACTION) * limit for used, limit in self._use_of(group))

    def _use_of(self, group: MemoryGroup) -> list[tuple[int, int]]:
        """Return a group's use without its page cache, and its limit; empty without a limit."""
        used = number(self._source, group.usage)
        limits = [
            limit
            for path in group.limits
            if (limit := number(self._source, path)) and limit < UNLIMITED_BYTES
        ]
        if used is None or not limits:
            return []
        page_cache = 0
        for line in (text(self._source, group.stat) or "").splitlines():
            name, _, value = line.partition(" ")
            if name in ("active_file", "inactive_file") and value.isdecimal():
                page_cache += int(value)
        return [(used - page_cache, min(limits))]

    def _is_stalled(self, path: str) -> bool:
        for line in (text(self._source, path) or "").splitlines():
            kind, *figures = line.split()
            if kind == "some" and figures and figures[0].startswith("avg10="):
                return float(figures[0].removeprefix("avg10=")) > MAX_STALLED_PERCENT
        return False
