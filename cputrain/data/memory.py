"""Batches gathered from data that lies in memory."""

from __future__ import annotations

from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.autograd import profiler
from torch.utils.data import _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter, _DatasetKind

from cputrain.data.ahead import Ahead, Trial
from cputrain.data.order import as_index, is_known, order_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.data.columns import Columns
    from cputrain.data.statistics import Statistics


class MemoryIterator(_BaseDataLoaderIter):
    """One gather for each tensor of a batch, in this process, whatever number of workers is set."""

    is_over = False

    def __init__(self, loader: Any, columns: Columns, statistics: Statistics) -> None:
        super().__init__(loader)
        self._columns = columns
        self._statistics = statistics
        self._workers: list[Any] = []
        """None, for those who look."""
        if self._num_workers > 0:
            self._sampler_iter = iter(self._index_sampler)  # over workers, torch begins it twice
        self._start()

    def _start(self) -> None:
        # nothing that makes batches may refer to this iterator: a thread may be holding it
        known = is_known(self._index_sampler)
        self._trial = Trial(self._statistics) if known else None
        self._made = (
            _ordered(self._columns, self._index_sampler)
            if known
            else _listed(self._columns, self._sampler_iter, self._dataset, self._collate_fn)
        )
        if self._pin_memory:
            pin, device = _utils.pin_memory.pin_memory, self._pin_memory_device
            self._made = (pin(batch, device) for batch in self._made)
        if self._num_workers > 0:  # over workers, torch draws the first rows at once
            self.draw_first()

    def draw_first(self) -> None:
        """Have the first rows drawn now."""
        self._made = chain(list(islice(self._made, 1)), self._made)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self.is_over = False
        self._start()

    def __next__(self) -> Any:
        # no call more than is needed: small batches are gathered in less time than five calls take
        if profiler._is_profiler_enabled or self._trial is not None:
            return super().__next__()
        begin = perf_counter()
        try:
            data = next(self._made)
        except StopIteration:
            self.is_over = True
            raise
        statistics = self._statistics
        statistics.waited_s += perf_counter() - begin
        statistics.batches += 1
        self._num_yielded += 1
        return data

    def _next_data(self) -> Any:
        begin = perf_counter()
        try:
            data = next(self._made)
        except StopIteration:
            self.is_over = True
            raise
        end = perf_counter()
        self._statistics.waited_s += end - begin
        self._statistics.batches += 1
        if self._trial is not None:
            self._try_thread(self._trial, begin, end)
        return data

    def _try_thread(self, trial: Trial, begin: float, end: float) -> None:
        trial.step(begin, end)
        if isinstance(self._made, Ahead):
            if not trial.ahead:
                self._made = self._made.stop()
        elif trial.ahead:
            self._made = Ahead(self._made)
        if trial.over:
            self._trial = None


def _ordered(columns: Columns, sampler: Any) -> Iterator[Any]:
    """Batches in the order of torch's own samplers."""
    order = order_of(sampler)
    if order.rows is None:
        for begin, end in order.spans(0):
            yield columns.span(begin, end)
    else:
        yield from columns.gather_each(order.indices(0))


def _listed(
    columns: Columns, rows_of_batches: Iterator[Any], dataset: Any, collate_fn: Any
) -> Iterator[Any]:
    """Batches in the order of another sampler."""
    fetcher = None
    for rows in rows_of_batches:
        index = as_index(rows, columns.rows)
        if index is not None:
            yield columns.gather(index)
            continue
        if fetcher is None:  # whatever these rows are, torch knows what comes of them
            fetcher = _DatasetKind.create_fetcher(
                _DatasetKind.Map, dataset, True, collate_fn, False
            )
        yield fetcher.fetch(rows)
