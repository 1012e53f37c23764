"""Roof of a machine: peak FLOP/s and bandwidths, measured through torch and cached.

A roof that was measured while other processes used the CPUs is rough: the cache keeps it, and the
next diagnosis measures again and merges both.
"""

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
from cputrain.machine.cache import CacheFile
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from cputrain.diagnose.step_profile import OperatorTime
    from cputrain.machine import Machine


CACHE = CacheFile("the measured roof", 2, "roof.json")
"""Measured roofs; those of version 1 do not say whether other processes ran."""

TIMEOUT_S = 300.0
"""Time limit of a measurement in seconds."""

Product = tuple[int, int, int, str]
"""Matrix product: rows, columns, inner dimension, and dtype."""

PINNED = {"OMP_PLACES": "cores", "OMP_PROC_BIND": "close"}
"""Variables that pin each thread of the benchmark process to its own core."""

AFFINITY_VARIABLES = (*PINNED, "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
"""Variables with which the user controls the affinity of threads."""

Rates = dict[str, dict[str, float]]
"""Rates per second by dtype or memory level, and by thread count (a decimal string)."""

DEFAULT_L2_BYTES = 1 << 20
"""Size of an L2 cache, if the system does not report it."""

DEFAULT_L3_BYTES = 1 << 25
"""Size of an L3 cache, if the system does not report it."""

LEVELS = ("memory", "l3", "l2")
"""Levels of memory, the slowest first."""

MIN_SCALING = {"flops_per_s": 0.85, "bandwidth_bytes_per_s": 0.75}
"""Smallest plausible ratio of a rate with more threads to a rate with fewer, by table."""

MAX_ROUGH_RATIO = 1.5
"""Largest plausible ratio of a rate of a rough measurement to that of an undisturbed one."""

WIDE_DTYPES = frozenset({"float32", "float64", "complex64", "complex128"})
"""Dtypes that no CPU computes faster than float32."""


class Roof(Record):
    """Highest rates that torch reaches on this machine.

    The rate for a thread count is the best with at most that many threads, so rates never decrease
    with threads.
    """

    torch: str
    """Version of torch."""

    cores: int
    """Largest number of threads that was measured."""

    flops_per_s: Rates
    """Peak FLOP/s of matrix products and convolutions, by dtype and thread count."""

    bandwidth_bytes_per_s: Rates
    """Peak bandwidth of "memory", "l3" and "l2" for any access pattern, by thread count."""

    team_seconds: dict[str, float]
    """Overhead of a parallel region, by thread count."""

    call_seconds: float
    """Time of an operator on a tensor of a few elements."""

    fault_seconds: float
    """Time of a page fault with first touch."""

    streaming_bytes_per_s: Rates = {}
    """Bandwidth of operators that read some arrays and write another, used for predictions."""

    cache_bytes: dict[str, float] = {}
    """Size of one core's "l2" and of all "l3" caches together; empty if unknown."""

    denormal_seconds: float = 5e-8
    """Additional time per denormal number, in the operator that denormals slow down most."""

    measurements: int = 1
    """Number of measurements that were merged into this roof."""

    rough: tuple[str, ...] = ()
    """Why the machine may be faster; empty if nothing disturbed the measurement."""

    def __post_init__(self) -> None:
        """Validate the rates, and raise each to those of fewer threads and slower levels."""
        for table, required in (
            (self.flops_per_s, {"float32", "bfloat16"}),
            (self.bandwidth_bytes_per_s, set(LEVELS)),
            (self.streaming_bytes_per_s, set()),
        ):
            for name in required | set(table):
                rates = table.get(name, {})
                if "1" not in rates or not all(map(_is_rate, rates.items())):
                    raise ValueError(f"{rates} as the rates of {name}")
        if self.cores < 1:
            raise ValueError(f"{self.cores} cores")
        bandwidth = {name: dict(rates) for name, rates in self.bandwidth_bytes_per_s.items()}
        for slower, faster in pairwise(LEVELS):
            for threads, rate in bandwidth[slower].items():
                faster_rate = _rate_at(bandwidth[faster], int(threads))
                bandwidth[faster][threads] = max(rate, faster_rate)
        self.__dict__["flops_per_s"] = _increasing(self.flops_per_s)
        self.__dict__["bandwidth_bytes_per_s"] = _increasing(bandwidth)
        self.__dict__["streaming_bytes_per_s"] = _increasing(self.streaming_bytes_per_s)

    def flops(self, dtype: str, threads: int) -> float:
        """Return the peak FLOP/s of matrix products of a dtype; of float32 if it is unknown."""
        return _rate_at(self.flops_per_s.get(dtype, self.flops_per_s["float32"]), threads)

    def highest_flops(self, dtype: str, threads: int) -> float:
        """Return the peak FLOP/s of any kernel on tensors of a dtype.

        A kernel of a narrower dtype than float32 may compute in float32 if that is faster; for a
        dtype that was not measured, the fastest dtype counts.
        """
        rate = self.flops(dtype, threads)
        if dtype in WIDE_DTYPES:
            return rate
        if dtype in self.flops_per_s:
            return max(rate, self.flops("float32", threads))
        return max(_rate_at(rates, threads) for rates in self.flops_per_s.values())

    def bandwidth(self, threads: int, level: str = "memory") -> float:
        """Return the peak bytes per second of main memory or a cache."""
        return _rate_at(self.bandwidth_bytes_per_s[level], threads)

    def streaming(self, threads: int, level: str = "memory") -> float:
        """Return the bytes per second of operators that read some arrays and write another."""
        rates = self.streaming_bytes_per_s.get(level) or self.bandwidth_bytes_per_s[level]
        return _rate_at(rates, threads)

    def level_of(self, num_bytes: float, threads: int) -> str:
        """Return the fastest of "l2", "l3" and "memory" that holds a number of bytes."""
        capacity = 0.0
        for level, size in self._caches(threads):
            capacity += size
            if num_bytes <= capacity:
                return level
        return "memory"

    def _caches(self, threads: int) -> tuple[tuple[str, float], ...]:
        """Return the caches that some threads reach and their sizes, the fastest first."""
        if not self.cache_bytes:
            return (("l2", inf),)  # sizes are unknown: all data may come from a cache
        private = self.cache_bytes.get("l2", 0.0) * max(1, min(threads, self.cores))
        return ("l2", private), ("l3", self.cache_bytes.get("l3", 0.0))

    def transfer_seconds(self, num_bytes: float, threads: int) -> float:
        """Return the shortest time to move data of which the caches hold as much as they can."""
        seconds, remaining = 0.0, num_bytes
        for level, size in self._caches(threads):
            moved = min(remaining, size)
            seconds += moved / self.bandwidth(threads, level)
            remaining -= moved
        return seconds + remaining / self.bandwidth(threads)

    def product_seconds(self, operators: Iterable[OperatorTime], threads: int) -> float:
        """Return the time of the operators' products at the peak FLOP/s of their dtypes."""
        return sum(
            operator.flops / self.highest_flops(operator.compute_dtype, threads)
            for operator in operators
        )

    def least_seconds(self, operator: OperatorTime, threads: int) -> tuple[float, str]:
        """Return the time of an operator's calls at the roof, and the bound.

        The bound is "computing" or a level of memory.
        """
        compute_s = self.product_seconds((operator,), threads)
        call_bytes = operator.bytes / operator.calls if operator.calls else 0.0
        memory_s = (
            operator.calls * self.transfer_seconds(call_bytes, threads) if call_bytes else 0.0
        )
        if compute_s >= memory_s:
            return compute_s, "computing"
        return memory_s, self.level_of(call_bytes, threads)

    def is_inverted(self) -> bool:
        """Return whether more threads were slower than fewer: other processes used the cores."""
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
    """Return the rates sorted by thread count, each raised to those of fewer threads."""
    increasing: Rates = {}
    for name, rates in table.items():
        highest = 0.0
        increasing[name] = {}
        for threads in sorted(rates, key=int):
            highest = max(highest, rates[threads])
            increasing[name][str(int(threads))] = highest
    return increasing


def _rate_at(rates: Mapping[str, float], threads: int) -> float:
    """Return an upper bound of the rate for a thread count, from measured thread counts."""
    known = {int(count): rate for count, rate in rates.items()}
    below = max((count for count in known if count <= threads), default=min(known))
    above = min((count for count in known if count >= threads), default=below)
    # a thread is never faster than among fewer threads
    return min(known[above], known[below] * max(1.0, threads / below))


def has_inverted_rates(document: Mapping[str, Any]) -> bool:
    """Return whether more threads are much slower than fewer in a measurement."""
    for table, ratio in MIN_SCALING.items():
        for rates in document[table].values():
            highest = 0.0
            for threads in sorted(rates, key=int):
                if rates[threads] < ratio * highest:
                    return True
                highest = max(highest, rates[threads])
    return False


def machine_roof(
    machine: Machine,
    torch: str,
    python: str = sys.executable,
    *,
    again: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> Roof:
    """Return the machine's roof: from the cache if it has one that is not rough, or measured now.

    A rough roof in the cache is merged with the new measurement.

    Args:
        machine: Machine whose budget is measured.
        torch: Version of torch; each version has its own roof.
        python: Interpreter of the benchmark process.
        again: Whether to measure even if the cache has a roof that is not rough.
        tell: Called with the reason for measuring again, or for ignoring the cache.

    Raises:
        CputrainError: The benchmark fails or exceeds its time limit.
    """
    cached, problem = load_cached_roof(machine, torch)
    if problem:
        tell(problem)
    if cached is not None and not cached.rough and not again:
        return cached
    if cached is not None and cached.rough:
        tell(f"measuring again, because {cached.rough[0]}")
    tell("measuring the highest rates of this machine, which takes about 15 s")
    roof = measure_roof(machine, python)
    if roof.is_inverted() and cached is None:
        tell(f"measuring again, because {INVERTED}")
        roof = merge_roofs(roof, measure_roof(machine, python))
    if cached is not None and (cached.rough or again):
        roof = merge_roofs(cached, roof)
    cache_roof(machine, torch, roof)
    return roof


def merge_roofs(before: Roof, now: Roof) -> Roof:
    """Return the best figures of two measurements, as rough as the second.

    If only the first measurement is rough, its rates that exceed the second's by more than
    `MAX_ROUGH_RATIO` are implausible and dropped.
    """

    def merge_table(name: str) -> Rates:
        first, second = getattr(before, name), getattr(now, name)
        return {
            key: _merge_rates(first.get(key, {}), second.get(key, {}), limit)
            for key in {**first, **second}
        }

    limit = MAX_ROUGH_RATIO if before.rough and not now.rough else inf
    return now.replace(
        flops_per_s=merge_table("flops_per_s"),
        bandwidth_bytes_per_s=merge_table("bandwidth_bytes_per_s"),
        streaming_bytes_per_s=merge_table("streaming_bytes_per_s"),
        team_seconds={
            threads: min(seconds, before.team_seconds.get(threads, seconds))
            for threads, seconds in now.team_seconds.items()
        },
        call_seconds=min(before.call_seconds, now.call_seconds),
        fault_seconds=min(before.fault_seconds, now.fault_seconds),
        denormal_seconds=min(before.denormal_seconds, now.denormal_seconds),
        measurements=before.measurements + now.measurements,
    )


def _merge_rates(before: dict[str, float], now: dict[str, float], limit: float) -> dict[str, float]:
    """Return the higher rates; one of `before` above `limit` times that of `now` is dropped."""
    rates = dict(now) if now else dict(before)
    for threads, rate in before.items():
        if threads not in now or now[threads] < rate <= limit * now[threads]:
            rates[threads] = rate
    return rates


def load_cached_roof(machine: Machine, torch: str) -> tuple[Roof | None, str]:
    """Return the cached roof or None, and why the cache cannot be used, or an empty string."""
    document, problem = CACHE.read()
    entry = document.get(_key(machine, torch))
    if entry is None:
        return None, problem
    try:
        return record_from(Roof, entry), ""
    except (ValueError, OverflowError) as error:  # the file was edited
        return None, f"the roof in {CACHE.path} is not used: {error}"


def cache_roof(machine: Machine, torch: str, roof: Roof) -> None:
    """Write a roof to the cache; without write access, the next diagnosis measures again."""
    document, _ = CACHE.read()  # figures of another version have another meaning
    with suppress(OSError):
        CACHE.write({**document, _key(machine, torch): roof.as_json()})


def _key(machine: Machine, torch: str) -> str:
    budget = machine.budget
    return (
        f"{machine.fingerprint()}, {len(budget.cpus)} of them, time for {budget.physical_cores}, "
        f"torch {torch}"
    )


def measure_roof(machine: Machine, python: str = sys.executable) -> Roof:
    """Measure the roof in a subprocess, and return it.

    Raises:
        CputrainError: The benchmark fails or exceeds its time limit.
    """
    topology, budget = machine.topology, machine.budget
    allowed = frozenset(budget.cpus)
    request = {
        "cores": max(1, budget.physical_cores),
        "l2_bytes": _largest_bytes(topology.l2_domains, DEFAULT_L2_BYTES),
        "l3_bytes": _largest_bytes(topology.l3_domains, DEFAULT_L3_BYTES)
        * max(1, len(topology.l3_domains)),
        "memory_bytes": machine.limits.memory_bytes or machine.memory.total_bytes or 1 << 32,
        # other processes may use the second hardware thread of an allowed core
        "cpus": sorted({cpu for core in topology.cores if allowed & set(core) for cpu in core}),
    }
    # with a core per thread, threads are pinned: beside a busy program, the scheduler may let two
    # threads share a core for seconds, so that no repetition reaches the peak
    has_core_per_thread = len(cores_within(topology, budget.cpus)) == request["cores"]
    environ = (
        PINNED
        if has_core_per_thread and not any(name in os.environ for name in AFFINITY_VARIABLES)
        else {}
    )
    document = _run_benchmark(request, python, environ)
    if has_inverted_rates(document):
        document["rough"].append(INVERTED)
    return record_from(Roof, document)


def product_seconds(
    products: Sequence[Product], threads: int, python: str = sys.executable
) -> dict[Product, float]:
    """Measure the seconds of each matrix product in a subprocess.

    Raises:
        CputrainError: The benchmark fails or exceeds its time limit.
    """
    if not products:
        return {}
    seconds = _run_benchmark({"products": list(products), "threads": threads}, python)
    return dict(zip(products, seconds, strict=True))


def _run_benchmark(
    request: dict[str, Any], python: str, environ: Mapping[str, str] | None = None
) -> Any:
    """Run `roof_benchmark.py` with a request and more environment variables; return its result."""
    command = [python, "-P", "-m", "cputrain.diagnose.roof_benchmark", json.dumps(request)]
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
            env={**os.environ, **(environ or {})},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise CputrainError(
            "measuring this machine",
            f"must end within {TIMEOUT_S:.0f} s",
            found="it is still running",
            do="Try again when the machine is less busy.",
        ) from None
    if completed.returncode != 0:
        lines = completed.stderr.strip().splitlines() or [f"exit code {completed.returncode}"]
        raise CputrainError(
            "measuring this machine", "must work", found=lines[-1],
            do="Is torch installed for this python? pip install torch",
        )  # fmt: skip
    return json.loads(completed.stdout)


def _largest_bytes(domains: Any, default: int) -> int:
    """Return the size of the largest cache, or the default if no size is known."""
    return max((domain.size_bytes or 0 for domain in domains), default=0) or default
