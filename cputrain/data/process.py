"""Batches made in the script's own process, sample by sample."""

from __future__ import annotations

from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from cputrain.runtime.exchange import uncounted, without_ours

if TYPE_CHECKING:
    from cputrain.data.statistics import Statistics


class _Clocked:
    """A collate_fn, and the time it last took."""

    def __init__(self, collate_fn: Any) -> None:
        self._collate_fn = collate_fn
        self.took = 0.0

    def __call__(self, samples: Any) -> Any:
        begin = perf_counter()
        try:
            batch = self._collate_fn(samples)
        except BaseException as error:
            error.__traceback__ = without_ours(error)
            raise
        self.took = perf_counter() - begin
        return batch


uncounted(_Clocked.__call__)


class ProcessIterator(_SingleProcessDataLoaderIter):
    """torch's iterator, with a clock."""

    is_over = False

    def __init__(self, loader: Any, statistics: Statistics) -> None:
        super().__init__(loader)
        self._statistics = statistics
        self._collate = _Clocked(self._dataset_fetcher.collate_fn)
        self._dataset_fetcher.collate_fn = self._collate

    def draw_first(self) -> None:
        """Have the first rows drawn now."""
        self._sampler_iter = chain(list(islice(self._sampler_iter, 1)), self._sampler_iter)

    def _next_data(self) -> Any:
        begin = perf_counter()
        try:
            data = super()._next_data()
        except StopIteration:
            self.is_over = True
            raise
        except BaseException as error:
            error.__traceback__ = without_ours(error)
            raise
        took = perf_counter() - begin
        statistics = self._statistics
        statistics.waited_s += took
        statistics.samples_s += took - self._collate.took
        statistics.collate_s += self._collate.took
        statistics.batches += 1
        return data


uncounted(ProcessIterator._next_data)
