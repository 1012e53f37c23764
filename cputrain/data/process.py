"""Batches made in the script's own process, sample by sample."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

if TYPE_CHECKING:
    from cputrain.data.statistics import Statistics


class ProcessIterator(_SingleProcessDataLoaderIter):
    """torch's iterator, with a clock."""

    is_over = False

    def __init__(self, loader: Any, statistics: Statistics) -> None:
        super().__init__(loader)
        self._statistics = statistics
        self._collating = 0.0
        fetcher = self._dataset_fetcher
        fetcher.collate_fn = self._timed(fetcher.collate_fn)

    def _timed(self, collate_fn: Any) -> Any:
        def timed(samples: Any) -> Any:
            begin = perf_counter()
            batch = collate_fn(samples)
            self._collating = perf_counter() - begin
            return batch

        return timed

    def _next_data(self) -> Any:
        begin = perf_counter()
        try:
            data = super()._next_data()
        except StopIteration:
            self.is_over = True
            raise
        took = perf_counter() - begin
        statistics = self._statistics
        statistics.waited_s += took
        statistics.samples_s += took - self._collating
        statistics.collate_s += self._collating
        statistics.batches += 1
        return data
