"""The iterator that loads batches in the script's process, sample by sample."""

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
    """A collate_fn that measures the time of its last call."""

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
    """torch's single-process iterator, with timing and without the overhead of profiler records."""

    is_over = False

    def __init__(
        self, loader: Any, statistics: Statistics, cached: CachedDataset | None = None
    ) -> None:
        super().__init__(loader)
        if cached is not None:
            cached.open(0, is_in_script=True)
            self._dataset_fetcher.dataset = cached
        self._profile_name = profile_name(_SingleProcessDataLoaderIter)
        self._statistics = statistics
        self._collation = _TimedCollation(self._dataset_fetcher.collate_fn)
        self._dataset_fetcher.collate_fn = self._collation
        # torch counts the batches of an iterable dataset with a length, and warns of too many
        self._is_counted = self._IterableDataset_len_called is not None

    def draw_first(self) -> None:
        """Draw the first batch's rows at once instead of at the first `next`."""
        self._sampler_iter = chain(list(islice(self._sampler_iter, 1)), self._sampler_iter)

    # this frame takes the place of that of torch's `__next__`: a `stacklevel` of warnings is right
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
