"""The bandwidth of main memory, measured; and the file that remembers it."""

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
REMAKE = "remake it with: cputrain info --measure"


class Bandwidth(Record):
    """Bytes moved to and from main memory in a second."""

    bandwidth_bytes_per_s: int
    """All threads together."""

    one_core_bytes_per_s: int
    """One thread alone."""

    threads: int
    buffer_bytes: int
    """Of each thread, when all run."""

    spread: float
    """How far the rounds of all threads were apart, as a part of the median: 0.04 for 4 %."""

    how: str
    """A sentence or two: what was measured in which way."""

    def __post_init__(self) -> None:
        for name in ("bandwidth_bytes_per_s", "one_core_bytes_per_s", "threads", "buffer_bytes"):
            value = getattr(self, name)
            if type(value) is not int or value <= 0:
                raise UsageError(name, "is a whole number above 0", found=repr(value))
        if type(self.spread) not in (int, float) or not 0 <= self.spread < float("inf"):
            raise UsageError("spread", "is a number of 0 or more", found=repr(self.spread))
        if type(self.how) is not str:
            raise UsageError("how", "is a text", found=repr(self.how))


def measure_bandwidth(
    cpus: Sequence[int], *, seconds: float = 1.0, memory_bytes: int | None = None
) -> Bandwidth:
    """Copy in main memory for about `seconds`, on one of these CPUs and on all of them.

    `cpus` are logical CPUs, one of each core. Buffers take at most an eighth of the memory that is
    available, and of `memory_bytes`, where a limit lower than the machine's is known.
    """
    if not cpus or seconds <= 0:
        raise UsageError(
            "measure_bandwidth", "needs at least one CPU and a time above 0 s",
            found=f"cpus={list(cpus)}, seconds={seconds}",
        )  # fmt: skip
    cap = available_bytes(memory_bytes) // 8
    parts = 1 if len(cpus) == 1 else 2
    one = CopyRun(cpus[:1], cap, seconds / parts)
    every = one if parts == 1 else CopyRun(cpus, cap, seconds / parts)
    median = every.median
    return Bandwidth(
        bandwidth_bytes_per_s=round(median),
        one_core_bytes_per_s=round(one.median),
        threads=len(cpus),
        buffer_bytes=every.buffer_bytes,
        spread=(every.rounds[-1] - every.rounds[0]) / median,
        how=every.how,
    )


def cache_file() -> str:
    """Where measurements are kept."""
    return os.path.join(cache_folder(), "bandwidth.json")


def load_bandwidth(key: str) -> tuple[Bandwidth | None, str | None]:
    """What was saved under this key; and a message, when the file is there but of no use."""
    path = cache_file()
    kept, message = _load(path)
    value = kept.get(key)
    if value is None:
        return None, message
    try:
        if not isinstance(value, dict):
            raise TypeError(f"an entry that is a {type(value).__name__}")
        return Bandwidth(**value), None
    except (TypeError, UsageError) as fault:
        return None, f"{path} is being ignored: its entry {key!r} is wrong ({fault}); {REMAKE}"


def save_bandwidth(key: str, value: Bandwidth) -> str | None:
    """Keep a measurement; the message says why it could not be kept, which is no error."""
    path = cache_file()
    document = {
        "schema_version": SCHEMA_VERSION,
        "bandwidth": {**_load(path)[0], key: value.as_json()},
    }
    try:
        write_json(path, document)
    except OSError as fault:
        return (
            f"{path} cannot be written ({fault.strerror or fault}), so the measured memory "
            "bandwidth is used now and not kept. Make its folder writable, or set XDG_CACHE_HOME."
        )
    return None


def _load(path: str) -> tuple[dict[str, object], str | None]:
    """All entries; and a message, when the file is there but of no use."""
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read())
    except FileNotFoundError:
        return {}, None
    except (OSError, ValueError, RecursionError) as fault:
        return {}, f"{path} is being ignored: it cannot be read ({fault}); {REMAKE}"
    if not isinstance(document, dict) or document.get("schema_version") != SCHEMA_VERSION:
        found = document.get("schema_version") if isinstance(document, dict) else type(document)
        return {}, (
            f"{path} is being ignored: its schema_version is to be {SCHEMA_VERSION}, "
            f"found {found!r}; {REMAKE}"
        )
    kept = document.get("bandwidth")
    if not isinstance(kept, dict):
        return {}, f"{path} is being ignored: its field 'bandwidth' is no object; {REMAKE}"
    return kept, None
