"""Measured bandwidth of main memory, and the JSON file in which measurements are cached."""

from __future__ import annotations

import json
import os

from cputrain.errors import UsageError
from cputrain.machine.cache import cache_folder, write_json
from cputrain.machine.memory_copy import CopyRun, available_bytes
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

SCHEMA_VERSION = 1
REMEDY = "recreate it with: cputrain info --measure"


class Bandwidth(Record):
    """A bandwidth measurement: bytes read from and written to main memory per second."""

    bandwidth_bytes_per_s: int
    """Bandwidth of all threads together."""

    one_core_bytes_per_s: int
    """Bandwidth of a single thread that runs alone."""

    threads: int
    """Number of threads in the run of all threads."""

    buffer_bytes: int
    """Buffer size of each thread in the run of all threads."""

    spread: float
    """Range of the rounds of all threads, relative to their median: 0.04 for 4 %."""

    how: str
    """Description of the measurement, in sentences."""

    def __post_init__(self) -> None:
        for name in ("bandwidth_bytes_per_s", "one_core_bytes_per_s", "threads", "buffer_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value <= 0:
                raise UsageError(name, "must be an integer above 0", found=repr(value))
        if type(self.spread) not in (int, float) or not 0 <= self.spread < float("inf"):
            raise UsageError("spread", "must be a finite number >= 0", found=repr(self.spread))
        if type(self.how) is not str:
            raise UsageError("how", "must be a string", found=repr(self.how))


def measure_bandwidth(
    cpus: Sequence[int], *, seconds: float = 1.0, memory_bytes: int | None = None
) -> Bandwidth:
    """Measure the memory bandwidth of one CPU and of all CPUs by copying.

    Args:
        cpus: Logical CPUs, one of each core.
        seconds: Approximate total duration.
        memory_bytes: Known memory limit of this process. Buffers take at most an eighth of the
            smaller of it and the available memory.
    """
    if not cpus or seconds <= 0:
        raise UsageError(
            "measure_bandwidth", "needs at least one CPU and a time above 0 s",
            found=f"cpus={list(cpus)}, seconds={seconds}",
        )  # fmt: skip
    max_bytes = available_bytes(memory_bytes) // 8
    num_runs = 1 if len(cpus) == 1 else 2
    single_run = CopyRun(cpus[:1], max_bytes, seconds / num_runs)
    full_run = single_run if num_runs == 1 else CopyRun(cpus, max_bytes, seconds / num_runs)
    median = full_run.median
    return Bandwidth(
        bandwidth_bytes_per_s=round(median),
        one_core_bytes_per_s=round(single_run.median),
        threads=len(cpus),
        buffer_bytes=full_run.buffer_bytes,
        spread=(full_run.rounds[-1] - full_run.rounds[0]) / median,
        how=full_run.how,
    )


def cache_file() -> str:
    """Return the path of the file in which measurements are cached."""
    return os.path.join(cache_folder(), "bandwidth.json")


def load_bandwidth(key: str) -> tuple[Bandwidth | None, str | None]:
    """Return the measurement cached under `key`, and a warning if the file is unusable."""
    path = cache_file()
    entries, message = _load(path)
    value = entries.get(key)
    if value is None:
        return None, message
    try:
        if not isinstance(value, dict):
            raise TypeError(f"it is a {type(value).__name__}, not an object")
        return Bandwidth(**value), None
    except (TypeError, UsageError) as error:
        return None, f"{path} is ignored: its entry {key!r} is invalid ({error}); {REMEDY}"


def save_bandwidth(key: str, value: Bandwidth) -> str | None:
    """Cache a measurement under `key`; return a warning if the file cannot be written."""
    path = cache_file()
    document = {
        "schema_version": SCHEMA_VERSION,
        "bandwidth": {**_load(path)[0], key: value.as_json()},
    }
    try:
        write_json(path, document)
    except OSError as error:
        return (
            f"{path} cannot be written ({error.strerror or error}), so the measured memory "
            "bandwidth is not cached. Make its folder writable, or set XDG_CACHE_HOME."
        )
    return None


def _load(path: str) -> tuple[dict[str, object], str | None]:
    """Return all cached entries, and a warning if the file is unusable."""
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read())
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"{path} is ignored: it cannot be read ({error}); {REMEDY}"
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        version = document.get("schema_version") if isinstance(document, dict) else type(document)
        return {}, (
            f"{path} is ignored: its schema_version must be {SCHEMA_VERSION}, "
            f"found {version!r}; {REMEDY}"
        )
    entries = document.get("bandwidth")
    if not isinstance(entries, dict):
        return {}, f"{path} is ignored: its field 'bandwidth' must be an object; {REMEDY}"
    return entries, None
