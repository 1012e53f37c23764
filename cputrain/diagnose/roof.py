"""What this machine can do at best: measured for a machine and a torch, and kept if it is good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from itertools import pairwise
from math import inf, isfinite

from cputrain.diagnose.records import record_from
from cputrain.errors import CputrainError
from cputrain.machine import cores_within
from cputrain.machine.cache import cache_folder, read_json, write_json
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from cputrain.diagnose.seen import Operator
    from cputrain.machine import Machine


SCHEMA_VERSION = 2
"""Of the file that keeps roofs: those of version 1 did not tell whether others ran meanwhile."""

LONGEST = 300.0
"""Seconds after which measuring is given up."""

Product = tuple[int, int, int, str]
"""Of two matrices: rows, columns, what is summed over, and the type."""

PINNED = {"OMP_PLACES": "cores", "OMP_PROC_BIND": "close"}
"""Keeps each thread of the process that measures on a core of its own."""

BINDING = (*PINNED, "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables of a user who has seen to that."""

Rates = dict[str, dict[str, float]]
"""By type or level, and number of threads."""

L2_BYTES = 1 << 20
L3_BYTES = 1 << 25
"""Of a machine that does not tell."""

LEVELS = ("memory", "l3", "l2")
"""What feeds an operator, the slowest first."""

SLOWER = {"flops_per_s": 0.85, "bandwidth_bytes_per_s": 0.75}
"""Part of a rate with fewer threads under which that with more cannot be right."""

PLAUSIBLE = 1.5
"""By how much a rate of a disturbed measurement may exceed that of an undisturbed one."""

WIDE = frozenset({"float32", "float64", "complex64", "complex128"})
"""Types that no CPU computes faster than float32."""


class Roof(Record):
    """Rates that nothing on this machine exceeds.

    A rate with some threads is the best with as many or fewer: more threads never have less.
    """

    torch: str
    """Its version."""

    cores: int
    """How many were measured together."""

    flops_per_s: Rates
    """Of products of matrices and convolutions, by type and number of threads."""

    bandwidth_bytes_per_s: Rates
    """Of "memory", "l3" and "l2", by number of threads: the best of any pattern of access."""

    team_seconds: dict[str, float]
    """What it costs to have so many threads begin and end."""

    call_seconds: float
    """Of an operator with next to nothing to do."""

    fault_seconds: float
    """Of a page of memory that is touched for the first time."""

    streaming_bytes_per_s: Rates = {}
    """As bandwidth, of operators that read some arrays and write another: for predictions."""

    cache_bytes: dict[str, float] = {}
    """Of a core's "l2", and of "l3" altogether; empty where that is not known."""

    denormal_seconds: float = 5e-8
    """What a denormal number takes longer, in the operator that it slows most."""

    measurements: int = 1
    """How often it was measured, with the best of all where others disturbed each."""

    rough: tuple[str, ...] = ()
    """Why the machine may be capable of more; empty where nothing disturbed the measurement."""

    def __post_init__(self) -> None:
        """Check that rates of one thread are there, and let no rate be under one of less."""
        for table, least in (
            (self.flops_per_s, {"float32", "bfloat16"}),
            (self.bandwidth_bytes_per_s, set(LEVELS)),
            (self.streaming_bytes_per_s, set()),
        ):
            for name in least | set(table):
                each = table.get(name, {})
                if "1" not in each or not all(map(_is_rate, each.items())):
                    raise ValueError(f"{each} as the rates of {name}")
        if self.cores < 1:
            raise ValueError(f"{self.cores} cores")
        bandwidth = {name: dict(rates) for name, rates in self.bandwidth_bytes_per_s.items()}
        for slower, faster in pairwise(LEVELS):
            for threads, rate in bandwidth[slower].items():
                own = _rate_at(bandwidth[faster], int(threads))
                bandwidth[faster][threads] = max(rate, own)
        self.__dict__["flops_per_s"] = _increasing(self.flops_per_s)
        self.__dict__["bandwidth_bytes_per_s"] = _increasing(bandwidth)
        self.__dict__["streaming_bytes_per_s"] = _increasing(self.streaming_bytes_per_s)

    def flops(self, dtype: str, threads: int) -> float:
        """Return the most operations in a second of products of this type."""
        return _rate_at(self.flops_per_s.get(dtype, self.flops_per_s["float32"]), threads)

    def highest_flops(self, dtype: str, threads: int) -> float:
        """Return the most operations in a second of any kernel with tensors of this type.

        What has fewer bits than float32 may be computed in float32 where that is faster, and a
        type that was not measured in the fastest of all.
        """
        rate = self.flops(dtype, threads)
        if dtype in WIDE:
            return rate
        if dtype in self.flops_per_s:
            return max(rate, self.flops("float32", threads))
        return max(_rate_at(rates, threads) for rates in self.flops_per_s.values())

    def bandwidth(self, threads: int, level: str = "memory") -> float:
        """Return the most bytes in a second from main memory or a cache."""
        return _rate_at(self.bandwidth_bytes_per_s[level], threads)

    def streaming(self, threads: int, level: str = "memory") -> float:
        """Return the bytes in a second of an operator that reads some arrays and writes another."""
        rates = self.streaming_bytes_per_s.get(level) or self.bandwidth_bytes_per_s[level]
        return _rate_at(rates, threads)

    def level_of(self, num_bytes: float, threads: int) -> str:
        """Return the nearest of "l2", "l3" and "memory" that holds so much."""
        held = 0.0
        for level, size in self._caches(threads):
            held += size
            if num_bytes <= held:
                return level
        return "memory"

    def _caches(self, threads: int) -> tuple[tuple[str, float], ...]:
        """Return the caches of so many threads with their bytes, the nearest first."""
        if not self.cache_bytes:
            return (("l2", inf),)  # nothing is known of their size: all may come from them
        private = self.cache_bytes.get("l2", 0.0) * max(1, min(threads, self.cores))
        return ("l2", private), ("l3", self.cache_bytes.get("l3", 0.0))

    def transfer_seconds(self, num_bytes: float, threads: int) -> float:
        """Return the least time to move so much: as much as caches hold comes from them."""
        seconds, left = 0.0, num_bytes
        for level, size in self._caches(threads):
            part = min(left, size)
            seconds += part / self.bandwidth(threads, level)
            left -= part
        return seconds + left / self.bandwidth(threads)

    def least_seconds(self, operator: Operator, threads: int) -> tuple[float, str]:
        """Return the least time of all calls of an operator, and what it is bound by: "computing",
        or a level of memory."""
        computing = operator.flops / self.highest_flops(operator.computes, threads)
        each = operator.bytes / operator.calls if operator.calls else 0.0
        moving = operator.calls * self.transfer_seconds(each, threads) if each else 0.0
        if computing >= moving:
            return computing, "computing"
        return moving, self.level_of(each, threads)

    def is_inverted(self) -> bool:
        """Return whether more threads were slower than fewer: then others had a core meanwhile."""
        return INVERTED in self.rough


INVERTED = "several threads were slower than one when this machine was measured"


def _is_rate(item: tuple[str, float]) -> bool:
    threads, rate = item
    return (
        threads.isascii()
        and threads.isdecimal()
        and int(threads) > 0
        and isfinite(rate)
        and rate > 0
    )


def _increasing(table: Rates) -> Rates:
    """Return rates with at most so many threads, in the order of their number."""
    increasing: Rates = {}
    for name, rates in table.items():
        highest = 0.0
        increasing[name] = {}
        for threads in sorted(rates, key=int):
            highest = max(highest, rates[threads])
            increasing[name][str(int(threads))] = highest
    return increasing


def _rate_at(rates: Mapping[str, float], threads: int) -> float:
    """Return the most that so many threads can have, between numbers of them that were measured."""
    known = {int(count): rate for count, rate in rates.items()}
    below = max((count for count in known if count <= threads), default=min(known))
    above = min((count for count in known if count >= threads), default=below)
    # each thread has no more than it has among fewer
    return min(known[above], known[below] * max(1.0, threads / below))


def inverted(document: Mapping[str, Any]) -> bool:
    """Return whether a measurement has more threads slower than fewer."""
    for table, part in SLOWER.items():
        for rates in document[table].values():
            highest = 0.0
            for threads in sorted(rates, key=int):
                if rates[threads] < part * highest:
                    return True
                highest = max(highest, rates[threads])
    return False


def roof_of(
    machine: Machine,
    torch: str,
    python: str = sys.executable,
    *,
    again: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Roof:
    """Return the machine's roof: from the cache where it is good, or measured now.

    One that was measured while others used the CPUs is rough. It is kept as that, so that the next
    measurement has its best figures, but never taken as it is.

    Args:
        again: whether to measure even where a good one is kept, because it was exceeded.
        tell: is told what is measured, and why something that was kept is not used.
    """
    kept, problem = kept_roof(machine, torch)
    if problem:
        tell(problem)
    if kept is not None and not kept.rough and not again:
        return kept
    if kept is not None and kept.rough:
        tell(f"it is measured again, because {kept.rough[0]}")
    roof = measure_roof(machine, python)
    if roof.is_inverted() and kept is None:
        tell(f"it is measured again, because {INVERTED}")
        roof = merged(roof, measure_roof(machine, python))
    if kept is not None and (kept.rough or again):
        roof = merged(kept, roof)
    keep_roof(machine, torch, roof)
    return roof


def merged(before: Roof, now: Roof) -> Roof:
    """Return the best figures of two measurements, as rough as the second.

    What was reached once can be reached. Beside a good measurement, figures of a rough one that are
    much higher are not plausible, and left out.
    """

    def highest(name: str) -> Rates:
        first, second = getattr(before, name), getattr(now, name)
        return {
            key: _highest(first.get(key, {}), second.get(key, {}), limit)
            for key in {**first, **second}
        }

    limit = PLAUSIBLE if before.rough and not now.rough else inf
    return now.replace(
        flops_per_s=highest("flops_per_s"),
        bandwidth_bytes_per_s=highest("bandwidth_bytes_per_s"),
        streaming_bytes_per_s=highest("streaming_bytes_per_s"),
        team_seconds={
            threads: min(seconds, before.team_seconds.get(threads, seconds))
            for threads, seconds in now.team_seconds.items()
        },
        call_seconds=min(before.call_seconds, now.call_seconds),
        fault_seconds=min(before.fault_seconds, now.fault_seconds),
        denormal_seconds=min(before.denormal_seconds, now.denormal_seconds),
        measurements=before.measurements + now.measurements,
    )


def _highest(before: dict[str, float], now: dict[str, float], limit: float) -> dict[str, float]:
    """Return the higher rates, unless the first exceeds the second by more than this factor."""
    rates = dict(now) if now else dict(before)
    for threads, rate in before.items():
        if threads not in now or now[threads] < rate <= limit * now[threads]:
            rates[threads] = rate
    return rates


def kept_roof(machine: Machine, torch: str) -> tuple[Roof | None, str]:
    """Return the roof in the cache, and why there is none that can be used, if there is one."""
    document, problem = read_json(_path(), "the measured roof")
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        return None, problem
    entry = document.get(_key(machine, torch))
    if entry is None:
        return None, ""
    try:
        return record_from(Roof, entry), ""
    except (ValueError, OverflowError) as error:  # it was written by hand
        return None, f"the roof in {_path()} is not used: {error}"


def keep_roof(machine: Machine, torch: str, roof: Roof) -> None:
    """Write a roof to the cache; where that cannot be, it is measured again the next time."""
    document, _ = read_json(_path(), "the measured roof")
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        document = {}  # of another version, whose figures mean something else
    document = {**document, "schema_version": SCHEMA_VERSION, _key(machine, torch): roof.as_json()}
    with suppress(OSError):
        write_json(_path(), document)


def _path() -> str:
    return os.path.join(cache_folder(), "roof.json")


def _key(machine: Machine, torch: str) -> str:
    budget = machine.budget
    return (
        f"{machine.fingerprint()}, {len(budget.cpus)} of them, time for {budget.physical_cores}, "
        f"torch {torch}"
    )


def measure_roof(machine: Machine, python: str = sys.executable) -> Roof:
    """Measure a roof now, in a process of its own."""
    topology, budget = machine.topology, machine.budget
    allowed = frozenset(budget.cpus)
    request = {
        "cores": max(1, budget.physical_cores),
        "l2_bytes": _largest(topology.l2_domains, L2_BYTES),
        "l3_bytes": _largest(topology.l3_domains, L3_BYTES) * max(1, len(topology.l3_domains)),
        "memory_bytes": machine.limits.memory_bytes or machine.memory.total_bytes or 1 << 32,
        # others may use the second hardware thread of a core of ours
        "cpus": sorted({cpu for core in topology.cores if allowed & set(core) for cpu in core}),
    }
    # where there is a core for each thread, each stays on its own: beside a busy program, the
    # system may have two of them share one for seconds, and no run is as fast as can be
    is_whole = len(cores_within(topology, budget.cpus)) == request["cores"]
    bound = PINNED if is_whole and not any(name in os.environ for name in BINDING) else {}
    document = _asked(request, python, bound)
    if inverted(document):
        document["rough"].append(INVERTED)
    return record_from(Roof, document)


def product_seconds(
    products: Sequence[Product], threads: int, python: str = sys.executable
) -> dict[Product, float]:
    """Return what each product takes here, measured in a process of its own."""
    if not products:
        return {}
    seconds = _asked({"products": list(products), "threads": threads}, python)
    return dict(zip(products, seconds, strict=True))


def _asked(request: dict[str, Any], python: str, more: Mapping[str, str] | None = None) -> Any:
    """Return what the process that measures answers, with more variables in its environment."""
    command = [python, "-P", "-m", "cputrain.diagnose.measuring", json.dumps(request)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST, check=False,
            env={**os.environ, **(more or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CputrainError(
            "measuring this machine",
            f"must be through within {LONGEST:.0f} s",
            found="it is not",
            do="Try again when the machine has less to do.",
        ) from None
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise CputrainError(
            "measuring this machine", "must work", found=said[-1],
            do="Is torch installed for this python? pip install torch",
        )  # fmt: skip
    return json.loads(done.stdout)


def _largest(domains: Any, otherwise: int) -> int:
    return max((domain.size_bytes or 0 for domain in domains), default=0) or otherwise
