"""Measured bandwidth of main memory, and the JSON file in which measurements are cached."""

from __future__ import annotations

from cputrain.errors import UsageError
from cputrain.machine.cache import CacheFile
from cputrain.machine.memory_copy import CopyRun, available_bytes
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

CACHE = CacheFile("the measured bandwidth", 1, "bandwidth.json")
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


def load_bandwidth(key: str) -> tuple[Bandwidth | None, str | None]:
    """Return the measurement cached under `key`, and a warning if the file is unusable."""
    entries, message = _load()
    value = entries.get(key)
    if value is None:
        return None, message
    try:
        if not isinstance(value, dict):
            raise TypeError(f"it is a {type(value).__name__}, not an object")
        return Bandwidth(**value), None
    except (TypeError, UsageError) as error:
        return None, f"{CACHE.path} is ignored: its entry {key!r} is invalid ({error}); {REMEDY}"


def save_bandwidth(key: str, value: Bandwidth) -> str | None:
    """Cache a measurement under `key`; return a warning if the file cannot be written."""
    try:
        CACHE.write({"bandwidth": {**_load()[0], key: value.as_json()}})
    except OSError as error:
        return (
            f"{CACHE.path} cannot be written ({error.strerror or error}), so the measured memory "
            "bandwidth is not cached. Make its folder writable, or set XDG_CACHE_HOME."
        )
    return None


def _load() -> tuple[dict[str, object], str | None]:
    """Return all cached entries, and a warning if the file is unusable."""
    document, problem = CACHE.read()
    entries = document.get("bandwidth", {})
    if not isinstance(entries, dict):
        entries, problem = {}, f"{CACHE.path} is ignored: its field 'bandwidth' must be an object"
    return entries, f"{problem}; {REMEDY}" if problem else None
