"""What this machine can do at best: measured once for a machine and a torch, and kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress

from cputrain.errors import CputrainError
from cputrain.machine.cache import cache_folder, read_json, write_json
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cputrain.machine import Machine

SCHEMA_VERSION = 1

LONGEST = 300.0
"""Seconds after which measuring is given up."""

Product = tuple[int, int, int, str]
"""Of two matrices: rows, columns, what is summed over, and the type."""

L2_BYTES = 1 << 20
L3_BYTES = 1 << 25
"""Of a machine that does not tell."""


class Roof(Record):
    """Rates that nothing on this machine exceeds."""

    torch: str
    """Its version."""

    cores: int
    """How many were measured together."""

    flops_per_s: dict[str, dict[str, float]]
    """Of products of matrices, by type and number of threads."""

    bandwidth_bytes_per_s: dict[str, dict[str, float]]
    """Of "memory", "l3" and "l2", by number of threads."""

    team_seconds: dict[str, float]
    """What it costs to have so many threads begin and end."""

    call_seconds: float
    """Of an operator with next to nothing to do."""

    fault_seconds: float
    """Of a page of memory that is touched for the first time."""

    def __post_init__(self) -> None:
        """There is a figure of one thread for all that is asked for."""
        for table, least in (
            (self.flops_per_s, {"float32", "bfloat16"}),
            (self.bandwidth_bytes_per_s, {"memory", "l3", "l2"}),
        ):
            for name in least | set(table):
                each = table.get(name, {})
                if not all(one.isdecimal() and value > 0 for one, value in each.items()) or (
                    "1" not in each
                ):
                    raise ValueError(f"{each} as the rates of {name}")

    def flops(self, dtype: str, threads: int) -> float:
        """The most operations in a second."""
        return _nearest(self.flops_per_s.get(dtype, self.flops_per_s["float32"]), threads)

    def bandwidth(self, threads: int, level: str = "memory") -> float:
        """The most bytes in a second."""
        return _nearest(self.bandwidth_bytes_per_s[level], threads)


def _nearest(by_threads: Mapping[str, float], threads: int) -> float:
    """The figure for the largest number of threads that is not above this."""
    fitting = [int(one) for one in by_threads if int(one) <= threads]
    return by_threads[str(max(fitting, default=1))]


def roof_of(machine: Machine, torch: str, python: str = sys.executable) -> Roof:
    """The machine's, from the cache or measured now."""
    path = os.path.join(cache_folder(), "roof.json")
    key = f"{machine.fingerprint()}, {len(machine.budget.cpus)} of them, torch {torch}"
    document, _ = read_json(path, "the measured roof")
    kept = document if isinstance(document, dict) else {}
    if kept.get("schema_version") == SCHEMA_VERSION and isinstance(kept.get(key), dict):
        with suppress(TypeError, ValueError):  # it was written by another version, or by hand
            return Roof(**kept[key])
    found = measure_roof(machine, python)
    with suppress(OSError):  # it is measured again the next time
        write_json(path, {**kept, "schema_version": SCHEMA_VERSION, key: found.as_json()})
    return found


def measure_roof(machine: Machine, python: str = sys.executable) -> Roof:
    """Now, in a process of its own."""
    topology, budget = machine.topology, machine.budget
    asked = {
        "cores": max(1, budget.physical_cores),
        "l2_bytes": _largest(topology.l2_domains, L2_BYTES),
        "l3_bytes": _largest(topology.l3_domains, L3_BYTES) * max(1, len(topology.l3_domains)),
        "memory_bytes": machine.limits.memory_bytes or machine.memory.total_bytes or 1 << 32,
    }
    return Roof(**_asked(asked, python))


def product_seconds(
    products: Sequence[Product], threads: int, python: str = sys.executable
) -> dict[Product, float]:
    """What each takes here, in a process of its own."""
    if not products:
        return {}
    found = _asked({"products": list(products), "threads": threads}, python)
    return dict(zip(products, found, strict=True))


def _asked(asked: dict[str, Any], python: str) -> Any:
    """What the process that measures answers."""
    command = [python, "-P", "-m", "cputrain.diagnose.measuring", json.dumps(asked)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
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
    return max((one.size_bytes or 0 for one in domains), default=0) or otherwise
