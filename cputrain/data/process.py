"""Batches made in the script's own process, sample by sample."""

from __future__ import annotations

from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from cputrain.data.torch_step import hide_frames, next_batch, profile_name, refusal_to_pickle
from cputrain.runtime.patching import uncounted

if TYPE_CHECKING:
    from cputrain.data.cached_dataset import CachedDataset
    from cputrain.data.statistics import Statistics


class _TimedCollation:
    """A collate_fn, and the time that its last call took."""

    def __init__(self, collate_fn: Any) -> None:
        self._collate_fn = collate_fn
        self.elapsed_s = 0.0

    def __call__(self, samples: Any) -> Any:
        begin = perf_counter()
        batch = self._collate_fn(samples)
        self.elapsed_s = perf_counter() - begin
        return batch


uncounted(_TimedCollation.__call__)


class ProcessIterator(_SingleProcessDataLoaderIter):
    """torch's iterator, with a clock in the place of what tells a profiler of each batch."""

    is_over = False

    def __init__(
        self, loader: Any, statistics: Statistics, cached: CachedDataset | None = None
    ) -> None:
        super().__init__(loader)
        if cached is not None:
            cached.open(0, is_scripts=True)
            self._dataset_fetcher.dataset = cached
        self._profile_name = profile_name(_SingleProcessDataLoaderIter)
        self._statistics = statistics
        self._collation = _TimedCollation(self._dataset_fetcher.collate_fn)
        self._dataset_fetcher.collate_fn = self._collation
        # of an iterable dataset torch counts the batches, and warns
        self._is_counted = self._IterableDataset_len_called is not None

    def draw_first(self) -> None:
        """Have the first rows drawn now."""
        self._sampler_iter = chain(list(islice(self._sampler_iter, 1)), self._sampler_iter)

    # (a frame in the place of torch's: what counts frames, as warnings do, is not led astray)
    def __next__(self) -> Any:
        begin = perf_counter()
        try:
            batch = next_batch(self, is_counted=self._is_counted)
        except BaseException as error:
            self.is_over = isinstance(error, StopIteration)
            hide_frames(error)
            raise
        elapsed_s = perf_counter() - begin
        statistics = self._statistics
        statistics.waited_s += elapsed_s
        statistics.samples_s += elapsed_s - self._collation.elapsed_s
        statistics.collate_s += self._collation.elapsed_s
        statistics.batches += 1
        return batch

    __getstate__ = refusal_to_pickle(_SingleProcessDataLoaderIter)
