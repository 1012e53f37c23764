"""Batches gathered from data that lies in memory."""

from __future__ import annotations

from collections import deque
from functools import partial
from itertools import chain, islice
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.data import _utils
from torch.utils.data._utils import collate
from torch.utils.data._utils.worker import _ResumeIteration
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
    _SingleProcessDataLoaderIter,
)

from cputrain.data.columns import columns_of
from cputrain.data.order import as_list, is_known, known_batches
from cputrain.data.prefetch import DEPTH, BatchThread, Trial
from cputrain.data.snapshot import snapshot_of
from cputrain.data.torch_step import (
    hide_frames,
    is_profiled,
    is_watched,
    next_batch,
    profile_name,
    refusal_to_pickle,
)
from cputrain.data.worker_errors import Worker, fetch_as_worker
from cputrain.runtime.patching import uncounted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.data.columns import Columns
    from cputrain.data.statistics import Statistics

MAX_REFUSALS = 3
"""Batches in a row that columns do not know, after which they are not asked any more."""


def collates_as_torch() -> bool:
    """Return whether default_collate stacks tensors and arrays, and nothing else is registered."""
    table = collate.default_collate_fn_map
    return (
        table.get(torch.Tensor) is collate.collate_tensor_fn
        and table.get(np.ndarray) is collate.collate_numpy_array_fn
        and _COLLATED_TYPES.issuperset(table)
    )


_COLLATED_TYPES: frozenset[Any] = frozenset(
    (torch.Tensor, np.ndarray, (np.bool_, np.number, np.object_), float, int, str, bytes)
)


class Gatherer:
    """Makes the batches that columns know."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._collations = dict(collate.default_collate_fn_map)
        self._num_refusals = 0

    def __call__(self, rows: Any) -> Any:
        """Return the batch of these rows; None if torch must make it."""
        if (
            self._num_refusals > MAX_REFUSALS
            or collate.default_collate_fn_map != self._collations
            or is_watched()
        ):
            return None
        try:
            batch = self._columns.gather(rows)
        except Exception:  # whatever it is: torch makes this batch, and says what is wrong
            batch = None
        self._num_refusals = 0 if batch is not None else self._num_refusals + 1
        return batch


class _Fetcher:
    """Stands in the place of torch's fetcher: gathers a batch, or has torch's make it."""

    def __init__(self, gather: Gatherer, torchs: Any) -> None:
        self._gather = gather
        self._torchs = torchs

    def fetch(self, rows: Any) -> Any:
        batch = self._gather(rows)
        return self._torchs.fetch(rows) if batch is None else batch


uncounted(_Fetcher.fetch)


class MemoryIterator(_SingleProcessDataLoaderIter):
    """torch's iterator without workers, with one gather for each tensor of a batch."""

    is_over = False

    def __init__(self, loader: Any, columns: Columns, statistics: Statistics) -> None:
        super().__init__(loader)
        self._profile_name = profile_name(_SingleProcessDataLoaderIter)
        self._statistics = statistics
        self._gather = Gatherer(columns)
        self._dataset_fetcher = _Fetcher(self._gather, self._dataset_fetcher)
        self._known: Iterator[Any] | None = None
        """The rows of each batch, where they are known without asking the sampler for a list."""
        self._has_begun = self._pin_memory

    def draw_first(self) -> None:
        """Have the first rows drawn now."""
        self._sampler_iter = chain(list(islice(self._sampler_iter, 1)), self._sampler_iter)
        self._has_begun = True

    def __next__(self) -> Any:
        begin = perf_counter()
        if not self._has_begun:
            self._begin()
        try:
            if self._known is not None:
                rows = self._next_rows(self._known)
                if rows is not None and not is_profiled():
                    batch = self._gather(rows)
                    if batch is not None:
                        self._num_yielded += 1
                        self._count(begin)
                        return batch
                if self._known is not None:
                    self._sampler_iter = iter(() if rows is None else (as_list(rows),))
            batch = super().__next__()
        except BaseException as error:
            self.is_over = isinstance(error, StopIteration)
            hide_frames(error)
            raise
        self._count(begin)
        return batch

    def _next_rows(self, known: Iterator[Any]) -> Any:
        """Return the next batch's rows; None at the end, or where torch's step raises an error."""
        try:
            return next(known, None)
        except Exception as error:  # of the script's data set: raised where a sampler would
            # once, and then it has ended, as a sampler that is a generator has
            self._known, self._sampler_iter = None, map(_raise, (error,))
            return None

    def _begin(self) -> None:
        """Torch's sampler begins to draw now."""
        self._has_begun = True
        if is_known(self._index_sampler) and not is_watched():
            self._known = known_batches(self._index_sampler)

    def _count(self, begin: float) -> None:
        self._statistics.waited_s += perf_counter() - begin
        self._statistics.batches += 1

    __getstate__ = refusal_to_pickle(_SingleProcessDataLoaderIter)


uncounted(MemoryIterator.__next__)


def _raise(error: Exception) -> Any:
    raise error


class MemoryWorkersIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator over workers, whose tasks are done in this process.

    It is torch's engine that says when a sampler is asked, which worker would make a batch, and
    what follows an error. A task is done when the engine waits for it.
    """

    is_over = False

    def __init__(self, loader: Any, statistics: Statistics) -> None:
        self._shutdown = True  # nothing to shut down, should this fail
        _BaseDataLoaderIter.__init__(self, loader)
        # workers have a copy of the dataset from when they start
        dataset = snapshot_of(loader.dataset)
        columns = columns_of(dataset, with_lists=True)
        assert columns is not None
        self._profile_name = profile_name(_MultiProcessingDataLoaderIter)
        self._prefetch_factor = loader.prefetch_factor
        self._in_order = loader.in_order
        self._worker_init_fn = loader.worker_init_fn
        self._statistics = statistics
        self._workers: list[Any] = []
        """None, for those who look."""
        self._tasks: deque[Any] = deque()
        queue: Any = _TaskQueue(self._tasks)
        self._index_queues = [queue] * loader.num_workers
        self._snapshot = dataset
        self._gather = Gatherer(columns)
        self._torchs_fetcher = _DatasetKind.create_fetcher(
            _DatasetKind.Map, dataset, True, self._collate_fn, False
        )
        self._has_gradients = torch.is_grad_enabled()
        self._thread: BatchThread | None = None
        self._is_thread_used = False
        self._trial: Trial | None = None
        self._shutdown = False
        self._reset(loader, first_iter=True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._tasks.clear()
        self._thread, self._is_thread_used = None, False
        self._trial = Trial(self._statistics)
        self.is_over = False
        sampler = self._index_sampler
        self._index_sampler = _Listed(sampler)
        try:
            super()._reset(loader, first_iter)
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            self._index_sampler = sampler

    def __next__(self) -> Any:
        begin = perf_counter()
        try:
            batch = next_batch(self)
        except BaseException as error:
            self.is_over = isinstance(error, StopIteration)
            hide_frames(error)
            raise
        end = perf_counter()
        self._statistics.waited_s += end - begin
        self._statistics.batches += 1
        if self._trial is not None:
            self._try_thread(self._trial, begin, end)
        return batch

    def _get_data(self) -> tuple[Any, Any]:
        task, batch = self._next_result()
        if isinstance(task, _ResumeIteration):
            return task, None
        number, rows = task
        if batch is None:
            place = self._task_info[number][0]
            worker = Worker(
                place, self._num_workers, self._base_seed + place, self._snapshot,
                self._has_gradients,
            )  # fmt: skip
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                batch = fetch_as_worker(worker, self._torchs_fetcher, as_list(rows))
        if self._pin_memory and not isinstance(batch, ExceptionWrapper):
            batch = _utils.pin_memory.pin_memory(batch, self._pin_memory_device)
        return number, batch

    def _next_result(self) -> tuple[Any, Any]:
        """Return the next task, and its batch unless torch must make it."""
        thread = self._thread
        if thread is not None:
            while self._is_thread_used and self._tasks and len(thread) <= DEPTH:
                thread.put(self._tasks.popleft())
            if len(thread):
                task, batch = thread.get()
                return task, batch
            if not self._is_thread_used:
                self._thread = None
        task = self._tasks.popleft()
        if isinstance(task, _ResumeIteration):
            return task, None
        if not is_watched():
            return task, _make(self._gather, task)
        # who watches this process does not see what is done in workers
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return task, _make(self._gather, task)

    def _try_thread(self, trial: Trial, begin: float, end: float) -> None:
        trial.step(begin, end)
        self._is_thread_used = trial.ahead
        if trial.ahead and self._thread is None:
            try:
                self._thread = BatchThread(partial(_make, self._gather))
            except RuntimeError:  # the system has no more threads for us
                self._trial = None
        if trial.over:
            self._trial = None

    def _shutdown_workers(self) -> None:
        self._shutdown = True
        self._thread = None

    __getstate__ = refusal_to_pickle(_MultiProcessingDataLoaderIter)


uncounted(MemoryWorkersIterator.__next__)


def _make(gather: Gatherer, task: tuple[int, Any]) -> Any:
    return gather(task[1])


class _TaskQueue:
    """What the engine takes for a worker's queue; all workers have one."""

    def __init__(self, tasks: deque[Any]) -> None:
        self.put = tasks.append


class _Listed:
    """A sampler whose batches are listed as ranges or tensors, where they are known."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        if is_known(self._sampler) and not is_watched():
            return known_batches(self._sampler)
        return iter(self._sampler)
