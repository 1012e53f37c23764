"""A DataLoader in the place of torch's."""

from __future__ import annotations

import copy
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch.utils.data

from cputrain.data import strategy as paths
from cputrain.data.cache import SampleCache
from cputrain.data.choose import first_choice, next_choice
from cputrain.data.resume import Position
from cputrain.data.sample_sharing import SampleSharing
from cputrain.data.torch_step import hide_frames
from cputrain.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.utils.data import Dataset, Sampler
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    from cputrain.data.statistics import Statistics

_T_co = TypeVar("_T_co", covariant=True)


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """torch's DataLoader: the same arguments, the same batches in the same order, less waiting.

    Beyond torch's arguments, `num_workers` may be "auto", and samples that come out the same each
    time may be kept.

    Args:
        cache: "memory", or a folder: where samples are kept. None to make them in each epoch.
        cache_bytes: that may be kept; by default a quarter of the memory, or half of what is free
            where the folder lies.
    """

    begins_early = True
    """With persistent workers, whether the next epoch may begin while this one ends.

    It does where its order is certain, and nothing is seen that workers share with the script. Set
    it to False where workers read what changes between epochs unseen: from a file, say.
    """

    shares_samples = True
    """Whether samples in a list, dict or array of objects are laid out once in shared memory.

    They are where workers would need more memory without. Set it to False where laying them out
    takes longer than the memory is worth.
    """

    def __init__(
        self,
        dataset: Dataset[_T_co],
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | Literal["auto"] = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        cache: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        plain: dict[str, Any] = {
            "batch_size": batch_size,
            "shuffle": shuffle,
            "sampler": sampler,
            "batch_sampler": batch_sampler,
            "collate_fn": collate_fn,
            "pin_memory": pin_memory,
            "drop_last": drop_last,
            "worker_init_fn": worker_init_fn,
            "generator": generator,
            "pin_memory_device": pin_memory_device,
            "in_order": in_order,
        }
        for_workers: dict[str, Any] = {
            "timeout": timeout,
            "multiprocessing_context": multiprocessing_context,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        self._auto: _Epoch | None = None
        reason = ""
        if num_workers == "auto":
            probe: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(dataset, **plain)
            num_workers, reason = first_choice(probe)
            if num_workers == 0:
                for_workers = {}
            self._auto = _Epoch()
        super().__init__(dataset, num_workers=num_workers, **plain, **for_workers)
        self._latest: weakref.ref[Any] | None = None
        self._resume_at: Position | None = None
        self._epoch_at: Position | None = None
        self._sharing = SampleSharing()
        self._cache: SampleCache | None = None
        if cache is not None:
            self._cache = SampleCache(dataset, cache, cache_bytes)
        elif cache_bytes is not None:
            raise UsageError(
                "cache_bytes", "has no effect without cache", do='Pass cache="memory" or a folder.'
            )
        if reason:
            self.stats().workers_reason = reason

    def __iter__(self) -> _BaseDataLoaderIter:
        if self._auto is not None and not self.persistent_workers:
            self._choose_again(self._auto)
        resumed = self._resume_at
        if resumed is not None:
            self._iterator = None  # workers of the epoch that is left have gone another way
        self._epoch_at = resumed or Position.before_epoch(self)
        iterator = super().__iter__()
        self._resume_at = None
        self._latest = weakref.ref(iterator)
        return iterator

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if paths.why_not():
            return super()._get_iterator()
        if self.num_workers:
            self.check_worker_number_rationality()
        try:
            return paths.iterator_of(self, resume=self._resume_at)
        except BaseException as error:
            hide_frames(error)
            raise

    def stats(self) -> Statistics:
        """Where the time went since this loader was made."""
        statistics = paths.statistics_of(self)
        if self._cache is not None:
            self._cache.tell(statistics)
        return statistics

    def state_dict(self) -> dict[str, Any]:
        """Where this loader is, for `load_state_dict` of one that is made alike."""
        position = self._resume_at
        iterator = None if self._latest is None else self._latest()
        if position is None and self._epoch_at is not None and iterator is not None:
            position = copy.copy(self._epoch_at)
            position.batches = iterator._num_yielded
            if paths.is_over(iterator):
                position = None  # the next epoch is yet to begin
        if position is None:
            position = Position.before_epoch(self)
        if hasattr(self.dataset, "state_dict") and self.num_workers == 0 and position.batches:
            position.dataset = self.dataset.state_dict()
        return position.document()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Begin the next epoch where `state` was taken: in its middle, with the same batches."""
        self._resume_at = Position.read(state, self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_latest": None, "_sharing": SampleSharing()}

    def _choose_again(self, epoch: _Epoch) -> None:
        now = time.perf_counter()
        if epoch.before is not None:
            chosen = next_choice(self.num_workers, epoch.before, self.stats(), now - epoch.begun)
            if chosen != self.num_workers:
                self.stats().workers_reason = (
                    f"{chosen} instead of {self.num_workers}, by how fast batches were consumed"
                )
                self.num_workers = chosen
        epoch.before, epoch.begun = copy.copy(self.stats()), now


class _Epoch:
    """When the latest one began, and what had been done by then."""

    def __init__(self) -> None:
        self.before: Statistics | None = None
        self.begun = 0.0
