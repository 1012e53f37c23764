"""What the system counts while a script runs: time, pages, switches, heat, and where memory is."""

from __future__ import annotations

import os

from cputrain.machine.cgroups import read_grant
from cputrain.machine.source import RootSource, number, text
from cputrain.machine.topology import CPU_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.machine.source import Source

FEW = 8
"""CPUs that are asked for their clock; asking all would take long on a large machine."""


class Counters:
    """Those of this process, and of the CPUs that it may use."""

    def __init__(self, source: Source | None = None, cpus: tuple[int, ...] | None = None) -> None:
        self._source = source or RootSource()
        if cpus is None:
            own = getattr(os, "sched_getaffinity", None)  # not on every system
            cpus = tuple(sorted(own(0))) if own else ()
        self._cpus = cpus
        self._quota = os.path.dirname(read_grant(self._source).quota_from)

    def now(self) -> dict[str, float]:
        """All that grow."""
        found = {
            "throttled_seconds": self._throttled(), "busy_seconds": self._busy(),
            "hot": float(self._hot()),
        }  # fmt: skip
        try:
            import resource
        except ImportError:  # not on Windows
            return found
        used = resource.getrusage(resource.RUSAGE_SELF)
        return {
            **found,
            "user_seconds": used.ru_utime, "system_seconds": used.ru_stime,
            "faults": used.ru_minflt, "reads": used.ru_majflt,
            "gave_way": used.ru_nvcsw, "was_stopped": used.ru_nivcsw,
        }  # fmt: skip

    def clock(self) -> float:
        """Hertz of some CPUs in the mean; 0 where that is not told."""
        step = max(1, len(self._cpus) // FEW)
        found = [
            value * 1000
            for cpu in self._cpus[::step]
            if (value := number(self._source, f"{CPU_FOLDER}/cpu{cpu}/cpufreq/scaling_cur_freq"))
        ]
        return sum(found) / len(found) if found else 0.0

    def placed(self) -> dict[str, float]:
        """Bytes of this process on each memory node, without those of files."""
        found: dict[str, float] = {}
        for line in (text(self._source, "/proc/self/numa_maps", 1 << 26) or "").splitlines():
            words = dict(word.partition("=")[::2] for word in line.split()[2:])
            if "file" in words:  # a library's, or the page cache's
                continue
            size = 1024.0 * int(words.get("kernelpagesize_kB", "4"))
            for name, count in words.items():
                if name[:1] == "N" and name[1:].isdecimal():
                    found[name[1:]] = found.get(name[1:], 0.0) + size * int(count)
        return found

    def _throttled(self) -> float:
        """Seconds for which the control group with the quota had used up its share of the CPU."""
        for line in (text(self._source, f"{self._quota}/cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name in {"throttled_usec", "throttled_time"} and value.isdecimal():
                return int(value) / (1e6 if name == "throttled_usec" else 1e9)
        return 0.0

    def _busy(self) -> float:
        """Seconds for which these CPUs were at work, whoever had them."""
        names = {f"cpu{cpu}" for cpu in self._cpus}
        ticks = 0
        for line in (text(self._source, "/proc/stat", 1 << 24) or "").splitlines():
            words = line.split()
            if words and words[0] in names:  # without those that were idle
                ticks += sum(map(int, [*words[1:4], *words[6:9]]))
        return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0

    def _hot(self) -> int:
        """How often one of these CPUs became too hot and slowed down."""
        return sum(
            number(self._source, f"{CPU_FOLDER}/cpu{cpu}/thermal_throttle/core_throttle_count") or 0
            for cpu in self._cpus
        )
