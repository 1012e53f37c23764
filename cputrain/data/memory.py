"""Batches gathered from data that lies in memory."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain, islice, starmap
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch.autograd import profiler
from torch.utils.data import SequentialSampler, _utils
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
        self._early = loader.prefetch_factor * loader.num_workers if loader.num_workers else 0
        if self._early:
            self._sampler_iter = iter(self._index_sampler)  # over workers, torch begins it twice
        self._start()

    def _start(self) -> None:
        sampler = self._index_sampler
        self._known = is_known(sampler, self._columns.rows)
        rows = _drawn(sampler) if self._known else self._sampler_iter
        drawn_at_once = self._known and getattr(sampler.sampler, "generator", None) is None
        if self._early:
            # over workers, torch draws so many batches' rows before it hands one out
            self._rows = _begun(rows) if drawn_at_once else Early(rows, self._early)
        else:
            self._rows = rows
        # a thread may make batches early where torch's workers do, and nobody sees it draw
        self._trial = Trial(self._statistics) if self._early and drawn_at_once else None
        self._made = self._gathered()

    def draw_first(self) -> None:
        """Have the first rows drawn now."""
        self._rows = _begun(self._rows)
        self._made = self._gathered()

    def _gathered(self) -> Iterator[Any]:
        # nothing here may refer to this iterator: a thread may be holding it
        columns, made = self._columns, self._rows
        if not self._known:
            made = Listed(columns, made, self._dataset, self._collate_fn)
        elif type(self._index_sampler.sampler) is SequentialSampler:
            made = starmap(columns.span, made)
        else:
            made = columns.gather_each(made)
        if self._pin_memory:
            made = map(partial(_utils.pin_memory.pin_memory, device=self._pin_memory_device), made)
        return made

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        super()._reset(loader, first_iter)
        self.is_over = False
        self._start()

    def __next__(self) -> Any:
        if profiler._is_profiler_enabled:
            return super().__next__()
        data = self._next_data()  # torch's own step, less what it spends on being traced
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
            try:
                self._made = Ahead(self._made)
            except RuntimeError:  # the system has no more threads for us
                self._trial = None
        if trial.over:
            self._trial = None


def _drawn(sampler: Any) -> Iterator[Any]:
    """The rows of each batch; drawn when the first is asked for."""
    order = order_of(sampler)
    yield from order.spans(0) if order.rows is None else order.indices(0)


def _begun(source: Iterator[Any]) -> Iterator[Any]:
    """The same, with its first item asked for now."""
    return chain(list(islice(source, 1)), source)


class Early:
    """Asks for so many items before it hands one out, and for one more each time."""

    def __init__(self, source: Iterator[Any], count: int) -> None:
        self._source = source
        self._waiting = deque(islice(source, count))

    def __iter__(self) -> Early:
        return self

    def __next__(self) -> Any:
        if not self._waiting:
            raise StopIteration
        item = self._waiting.popleft()
        self._waiting.extend(islice(self._source, 1))
        return item


class Listed:
    """Batches of rows in any order; after one that fails, the next can be asked for."""

    def __init__(
        self, columns: Columns, rows: Iterator[Any], dataset: Any, collate_fn: Any
    ) -> None:
        self._columns = columns
        self._rows = rows
        # whatever other rows are, torch knows what comes of them
        self._fetcher = _DatasetKind.create_fetcher(
            _DatasetKind.Map, dataset, True, collate_fn, False
        )

    def __iter__(self) -> Listed:
        return self

    def __next__(self) -> Any:
        rows = next(self._rows)
        index = as_index(rows, self._columns.rows)
        return self._fetcher.fetch(rows) if index is None else self._columns.gather(index)
