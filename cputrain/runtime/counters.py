"""Read the system's counters of a process: CPU time, memory, switches, heat, NUMA nodes."""

from __future__ import annotations

import os

from cputrain.machine.cgroups import memory_groups, read_grant
from cputrain.machine.source import RootSource, number, text
from cputrain.machine.topology import CPU_FOLDER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cputrain.machine.source import Source

NUM_CLOCKS = 8
"""Largest number of CPUs whose clock is read, since reading all is slow on a large machine."""

STEAL_FIELD = 8
"""Field of a CPU's line of /proc/stat with its steal time."""


class Counters:
    """Counters of this process and of some CPUs."""

    def __init__(self, source: Source | None = None, cpus: tuple[int, ...] | None = None) -> None:
        """Select what is read.

        Args:
            source: Files of a system; the live system by default.
            cpus: CPUs whose busy time, clocks and heat count; by default those that this process
                may run on.
        """
        self._source = source or RootSource()
        if cpus is None:
            get_affinity = getattr(os, "sched_getaffinity", None)  # not on every system
            cpus = tuple(sorted(get_affinity(0))) if get_affinity else ()
        self.cpus = cpus
        self._quota = os.path.dirname(read_grant(self._source).quota_from)
        self._memory_pressure = self._memory_pressure_file()

    def now(self) -> dict[str, float]:
        """Return the current value of every counter; differences of two calls are meaningful."""
        busy, steal = self._busy()
        counters = {
            "throttled_seconds": self._throttled(), "busy_seconds": busy, "steal_seconds": steal,
            "hot": float(self._hot()), "waiting_seconds": self._waiting(),
            "pressure_seconds": self._pressure("/proc/pressure/cpu"),
            "stalled_seconds": self._pressure(self._memory_pressure),
            "workers_seconds": self._living_workers(),
        }  # fmt: skip
        try:
            import resource
        except ImportError:  # not on Windows
            return counters
        usage = resource.getrusage(resource.RUSAGE_SELF)
        reaped = resource.getrusage(resource.RUSAGE_CHILDREN)
        counters["workers_seconds"] += reaped.ru_utime + reaped.ru_stime
        return {
            **counters,
            "user_seconds": usage.ru_utime, "system_seconds": usage.ru_stime,
            "faults": usage.ru_minflt, "reads": usage.ru_majflt,
            "gave_way": usage.ru_nvcsw, "was_stopped": usage.ru_nivcsw,
        }  # fmt: skip

    def clock(self) -> float:
        """Return the mean clock of some CPUs in hertz; 0 if unknown."""
        stride = max(1, len(self.cpus) // NUM_CLOCKS)
        clocks = [
            value * 1000
            for cpu in self.cpus[::stride]
            if (value := number(self._source, f"{CPU_FOLDER}/cpu{cpu}/cpufreq/scaling_cur_freq"))
        ]
        return sum(clocks) / len(clocks) if clocks else 0.0

    def placed(self) -> dict[str, float]:
        """Return the bytes of this process on each NUMA node, without file mappings."""
        placed: dict[str, float] = {}
        for line in (text(self._source, "/proc/self/numa_maps", 1 << 26) or "").splitlines():
            words = dict(word.partition("=")[::2] for word in line.split()[2:])
            if "file" in words:  # a shared library or another file mapping
                continue
            page_bytes = 1024.0 * int(words.get("kernelpagesize_kB", "4"))
            for name, count in words.items():
                if name[:1] == "N" and name[1:].isdecimal():
                    placed[name[1:]] = placed.get(name[1:], 0.0) + page_bytes * int(count)
        return placed

    def _memory_pressure_file(self) -> str:
        """Return the file of the stalls on memory: the control group's, or the system's."""
        files = (group.pressure for group in memory_groups(self._source))
        kept = (file for file in files if text(self._source, file) is not None)
        return next(kept, "/proc/pressure/memory")

    def _throttled(self) -> float:
        """Return the seconds for which the control group with the CPU quota was throttled."""
        for line in (text(self._source, f"{self._quota}/cpu.stat") or "").splitlines():
            name, _, value = line.partition(" ")
            if name in {"throttled_usec", "throttled_time"} and value.isdecimal():
                return int(value) / (1e6 if name == "throttled_usec" else 1e9)
        return 0.0

    def _busy(self) -> tuple[float, float]:
        """Return the busy seconds of the CPUs with steal time, and the steal time alone."""
        names = {f"cpu{cpu}" for cpu in self.cpus}
        busy_ticks = steal_ticks = 0
        for line in (text(self._source, "/proc/stat", 1 << 24) or "").splitlines():
            words = line.split()
            if words and words[0] in names:  # without idle and iowait
                busy_ticks += sum(map(int, [*words[1:4], *words[6 : STEAL_FIELD + 1]]))
                steal_ticks += sum(map(int, words[STEAL_FIELD : STEAL_FIELD + 1]))
        ticks_per_s = os.sysconf("SC_CLK_TCK") if busy_ticks else 1
        return busy_ticks / ticks_per_s, steal_ticks / ticks_per_s

    def _waiting(self) -> float:
        """Return the seconds for which runnable threads of this process waited for a CPU."""
        waiting_ns = 0
        for thread in self._source.names("/proc/self/task"):
            words = (text(self._source, f"/proc/self/task/{thread}/schedstat") or "").split()
            if len(words) == 3 and words[1].isdecimal():
                waiting_ns += int(words[1])
        return waiting_ns / 1e9

    def _pressure(self, path: str) -> float:
        """Return the seconds for which some thread waited for a resource (PSI); 0 if unknown."""
        for line in (text(self._source, path) or "").splitlines():
            words = line.split()
            if words[:1] == ["some"] and words[-1].startswith("total="):
                return int(words[-1].removeprefix("total=")) / 1e6
        return 0.0

    def _living_workers(self) -> float:
        """Return the CPU seconds of all living descendants of this process."""
        parents: dict[int, int] = {}
        ticks: dict[int, int] = {}
        for pid, fields in self._processes():
            parents[pid] = int(fields[1])
            ticks[pid] = sum(map(int, fields[11:15]))  # its own, and of children that it reaped
        total, generation = 0, {os.getpid()}
        while generation:
            generation = {pid for pid, parent in parents.items() if parent in generation}
            total += sum(ticks[pid] for pid in generation)
        return total / os.sysconf("SC_CLK_TCK") if total else 0.0

    def _processes(self) -> Iterator[tuple[int, list[str]]]:
        """Yield each process ID, and the fields of /proc/PID/stat after the command name."""
        for name in self._source.names("/proc"):
            if name.isdecimal():
                fields = (text(self._source, f"/proc/{name}/stat") or "").rpartition(") ")[2]
                if len(words := fields.split()) > 14:
                    yield int(name), words

    def _hot(self) -> int:
        """Return the thermal throttling events of the CPUs."""
        return sum(
            number(self._source, f"{CPU_FOLDER}/cpu{cpu}/thermal_throttle/core_throttle_count") or 0
            for cpu in self.cpus
        )


def other_cpu_seconds(counted: Mapping[str, float]) -> float:
    """Return the CPU seconds of other programs and virtual machines from counter differences."""
    names = ("user_seconds", "system_seconds", "workers_seconds")
    used_s = sum(counted.get(name, 0.0) for name in names)
    return max(0.0, counted.get("busy_seconds", 0.0) - used_s)
