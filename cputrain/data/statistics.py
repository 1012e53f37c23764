"""The record of a loader's decisions, times and counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cputrain.data.results import Result


@dataclass(slots=True, kw_only=True)
class Statistics:
    """Decisions, times and counts of a loader since its creation.

    Times are in seconds; those of several workers are added up.
    """

    path: str = ""
    """How batches are loaded: gathered from "memory", in "process", or by "workers"."""
    reason: str = ""
    """Why this path was chosen."""
    workers: int = 0
    """The number of worker processes in the latest epoch."""
    workers_reason: str = ""
    """Why this number of workers was chosen; empty unless `num_workers` is "auto"."""
    spared: int = 0
    """The number of requested worker processes that were not started."""
    epochs: int = 0
    """The number of iterators created."""
    batches: int = 0
    """The number of batches yielded."""
    waited_s: float = 0.0
    """Time that the script spent in `next`; without workers this includes loading the batch."""
    starting_s: float = 0.0
    """Time to start the workers."""
    samples_s: float = 0.0
    """Time spent in the dataset."""
    collate_s: float = 0.0
    """Time spent in collate_fn."""
    packing_s: float = 0.0
    """Time spent in workers on pickling batches and copying them to shared memory."""
    unpacking_s: float = 0.0
    """Time spent in the loader's process on receiving batches from workers."""
    bytes_moved: int = 0
    """Bytes sent from workers to the loader's process."""
    cached: int = 0
    """The number of samples read from the cache."""
    cache_bytes: int = 0
    """The size of the cache in bytes."""
    notes: list[str] = field(default_factory=list)
    """Decisions that a user may want to know of, as sentences."""

    def add_result(self, result: Result, unpacking_s: float) -> None:
        """Add the timings and the size of a worker's batch."""
        self.samples_s += result.samples_s
        self.collate_s += result.collate_s
        self.packing_s += result.packing_s
        self.unpacking_s += unpacking_s
        self.bytes_moved += sum(block.size for block in result.lent) + len(result.data)
