"""Where a loader's time went."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cputrain.data.results import Result


@dataclass(slots=True, kw_only=True)
class Statistics:
    """What a loader did since it was made. Times are in seconds, those of workers added up."""

    path: str = ""
    """How batches are made: "memory", "process" or "workers"."""
    reason: str = ""
    """Why that way."""
    workers: int = 0
    """Worker processes of the latest epoch."""
    workers_reason: str = ""
    """Why so many workers, where it was left to the loader."""
    spared: int = 0
    """Worker processes that were asked for and not needed."""
    epochs: int = 0
    """Iterators made."""
    batches: int = 0
    """Batches handed out."""
    waited_s: float = 0.0
    """In which the script waited for a batch; the time to make it, where no worker does."""
    starting_s: float = 0.0
    """Until the workers were started."""
    samples_s: float = 0.0
    """In the dataset."""
    collate_s: float = 0.0
    """In collate_fn."""
    packing_s: float = 0.0
    """In workers, laying batches out for the loader."""
    unpacking_s: float = 0.0
    """In the loader, taking them over."""
    bytes_moved: int = 0
    """From workers to the loader."""
    cached: int = 0
    """Samples that were read from the cache."""
    cache_bytes: int = 0
    """In the cache."""
    notes: list[str] = field(default_factory=list)
    """Decisions taken on the way."""

    def count(self, result: Result, unpacking: float) -> None:
        """A batch that a worker made."""
        self.samples_s += result.making
        self.collate_s += result.collating
        self.packing_s += result.packing
        self.unpacking_s += unpacking
        self.bytes_moved += sum(one.size for one in result.lent) + len(result.data)
