"""The public `DataLoader`: torch's arguments, plus automatic worker counts and a sample cache."""

from __future__ import annotations

import copy
import os
import time
import weakref
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch.utils.data

from cputrain.data import strategy
from cputrain.data.auto_workers import initial_num_workers, updated_num_workers
from cputrain.data.cache import SampleCache
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
    """A faster `torch.utils.data.DataLoader`, with the same batches in the same order.

    It takes torch's arguments. In addition, `num_workers` may be "auto", and samples that are the
    same in each epoch may be cached.

    Args:
        cache: Where samples are cached: "memory" or a folder. None computes them in each epoch.
        cache_bytes: The largest size of the cache in bytes; by default a quarter of the memory, or
            half of the free space of the folder's file system.

    Examples:
        >>> import torch
        >>> from cputrain import DataLoader
        >>> from torch.utils.data import TensorDataset
        >>> data = TensorDataset(torch.arange(6.0), torch.tensor([0, 1, 0, 1, 0, 1]))
        >>> for inputs, labels in DataLoader(data, batch_size=3):
        ...     print(inputs, labels)
        tensor([0., 1., 2.]) tensor([0, 1, 0])
        tensor([3., 4., 5.]) tensor([1, 0, 1])
    """

    begins_early = True
    """Whether persistent workers may prefetch batches of the next epoch before it begins.

    They do so where the next epoch's order is known, and the dataset shares no memory with the
    script. Set it to False if workers read something that changes between epochs in a way that
    cannot be detected, such as a file.
    """

    shares_samples = True
    """Whether a dataset's list, dict or array of objects is copied into shared memory once.

    This is done where each worker would otherwise need a copy. Set it to False where the time that
    copying takes matters more than the memory.
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
        arguments: dict[str, Any] = {
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
        worker_arguments: dict[str, Any] = {
            "timeout": timeout,
            "multiprocessing_context": multiprocessing_context,
            "prefetch_factor": prefetch_factor,
            "persistent_workers": persistent_workers,
        }
        self._epoch_start: _EpochStart | None = None
        reason = ""
        if num_workers == "auto":
            probe: torch.utils.data.DataLoader[Any] = torch.utils.data.DataLoader(
                dataset, **arguments
            )
            num_workers, reason = initial_num_workers(probe)
            if num_workers == 0:
                worker_arguments = {}
            self._epoch_start = _EpochStart()
        super().__init__(dataset, num_workers=num_workers, **arguments, **worker_arguments)
        self._iterator_ref: weakref.ref[Any] | None = None
        self._resume_position: Position | None = None
        self._epoch_position: Position | None = None
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
        if self._epoch_start is not None and not self.persistent_workers:
            self._update_num_workers(self._epoch_start)
        position = self._resume_position
        if position is not None:
            self._iterator = None  # persistent workers are in the state of the abandoned epoch
        self._epoch_position = position or Position.before_epoch(self)
        iterator = super().__iter__()
        self._resume_position = None
        self._iterator_ref = weakref.ref(iterator)
        return iterator

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if strategy.unsupported_reason():
            return super()._get_iterator()
        if self.num_workers:
            self.check_worker_number_rationality()
        try:
            return strategy.iterator_of(self, resume=self._resume_position)
        except BaseException as error:
            hide_frames(error)
            raise

    def stats(self) -> Statistics:
        """Return the time and counts recorded since this loader was created."""
        statistics = strategy.statistics_of(self)
        if self._cache is not None:
            self._cache.update_statistics(statistics)
        return statistics

    def state_dict(self) -> dict[str, Any]:
        """Return the position for `load_state_dict` of a loader with the same arguments."""
        position = self._resume_position
        iterator = None if self._iterator_ref is None else self._iterator_ref()
        if position is None and self._epoch_position is not None and iterator is not None:
            position = copy.copy(self._epoch_position)
            position.num_batches = iterator._num_yielded
            if strategy.is_over(iterator):
                position = None  # the next epoch has not begun
        if position is None:
            position = Position.before_epoch(self)
        if hasattr(self.dataset, "state_dict") and self.num_workers == 0 and position.num_batches:
            position.dataset_state = self.dataset.state_dict()
        return position.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Start the next epoch at a position that `state_dict` returned."""
        self._resume_position = Position.from_state_dict(state, self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterator_ref": None, "_sharing": SampleSharing()}

    def _update_num_workers(self, epoch: _EpochStart) -> None:
        """Set `num_workers` by how fast the last epoch's batches were produced and consumed."""
        now = time.perf_counter()
        if epoch.statistics is not None:
            num_workers = updated_num_workers(
                self.num_workers, epoch.statistics, self.stats(), now - epoch.time_s
            )
            if num_workers != self.num_workers:
                self.stats().workers_reason = (
                    f"{num_workers} instead of {self.num_workers}, "
                    "by how fast batches were consumed"
                )
                self.num_workers = num_workers
        epoch.statistics, epoch.time_s = copy.copy(self.stats()), now


class _EpochStart:
    """The time at which the latest epoch began, and the loader's statistics at that time."""

    def __init__(self) -> None:
        self.statistics: Statistics | None = None
        self.time_s = 0.0
