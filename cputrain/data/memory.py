"""Iterators that gather batches from datasets in memory, in the script's process."""

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
from cputrain.data.order import as_list, has_known_order, iter_batch_rows
from cputrain.data.prefetch import DEPTH, BatchThread, PrefetchTrial
from cputrain.data.snapshot import snapshot_of
from cputrain.data.torch_step import (
    has_torch_mode,
    hide_frames,
    is_observed,
    next_batch,
    profile_name,
    refusal_to_pickle,
)
from cputrain.data.worker_errors import WorkerIdentity, fetch_as_worker
from cputrain.runtime.patching import uncounted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cputrain.data.columns import Columns
    from cputrain.data.statistics import Statistics

MAX_REFUSALS = 3
"""Consecutive batches that columns cannot gather, after which they are not tried again."""


def has_default_collation() -> bool:
    """Return whether default_collate's table of collation functions is torch's own."""
    table = collate.default_collate_fn_map
    return (
        table.get(torch.Tensor) is collate.collate_tensor_fn
        and table.get(np.ndarray) is collate.collate_numpy_array_fn
        and _COLLATED_TYPES.issuperset(table)
    )


_COLLATED_TYPES: frozenset[Any] = frozenset(
    (torch.Tensor, np.ndarray, (np.bool_, np.number, np.object_), float, int, str, bytes)
)


class BatchGatherer:
    """A callable that gathers batches from columns, or returns None for torch to load them."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._collations = dict(collate.default_collate_fn_map)
        self._num_refusals = 0

    def __call__(self, rows: Any) -> Any:
        """Return the batch of these rows; None if torch must load it."""
        if (
            self._num_refusals > MAX_REFUSALS
            or collate.default_collate_fn_map != self._collations
            or has_torch_mode()
        ):
            return None
        try:
            batch = self._columns.gather(rows)
        except Exception:  # torch loads this batch instead, and raises the proper error
            batch = None
        self._num_refusals = 0 if batch is not None else self._num_refusals + 1
        return batch


class _Fetcher:
    """Replacement of torch's fetcher: gathers a batch, and falls back on torch's fetcher."""

    def __init__(self, gather: BatchGatherer, torch_fetcher: Any) -> None:
        self._gather = gather
        self._torch_fetcher = torch_fetcher

    def fetch(self, rows: Any) -> Any:
        batch = self._gather(rows)
        return self._torch_fetcher.fetch(rows) if batch is None else batch


uncounted(_Fetcher.fetch)


class MemoryIterator(_SingleProcessDataLoaderIter):
    """torch's single-process iterator, with one gather for each tensor of a batch."""

    is_over = False

    def __init__(self, loader: Any, columns: Columns, statistics: Statistics) -> None:
        super().__init__(loader)
        self._profile_name = profile_name(_SingleProcessDataLoaderIter)
        self._statistics = statistics
        self._gather = BatchGatherer(columns)
        self._dataset_fetcher = _Fetcher(self._gather, self._dataset_fetcher)
        self._batch_rows: Iterator[Any] | None = None
        """The rows of each batch, where they are computed without torch's sampler."""
        self._has_begun = self._pin_memory

    def draw_first(self) -> None:
        """Draw the first batch's rows at once instead of at the first `next`."""
        self._sampler_iter = chain(list(islice(self._sampler_iter, 1)), self._sampler_iter)
        self._has_begun = True

    def __next__(self) -> Any:
        begin = perf_counter()
        if not self._has_begun:
            self._begin_order()
        try:
            if self._batch_rows is not None:
                rows = self._next_rows(self._batch_rows)
                if rows is not None and not is_observed():
                    batch = self._gather(rows)
                    if batch is not None:
                        self._num_yielded += 1
                        self._record_batch(begin)
                        return batch
                if self._batch_rows is not None:
                    self._sampler_iter = iter(() if rows is None else (as_list(rows),))
            batch = super().__next__()
        except BaseException as error:
            self.is_over = isinstance(error, StopIteration)
            hide_frames(error)
            raise
        self._record_batch(begin)
        return batch

    def _next_rows(self, batch_rows: Iterator[Any]) -> Any:
        """Return the next batch's rows; None at the end, or if torch's `__next__` must raise."""
        try:
            return next(batch_rows, None)
        except Exception as error:  # of the script's dataset
            # torch's iterator raises it once from its sampler, which has then ended, as a generator
            self._batch_rows, self._sampler_iter = None, map(_raise, (error,))
            return None

    def _begin_order(self) -> None:
        """Start the epoch's order, at the time at which torch's sampler starts it."""
        self._has_begun = True
        if has_known_order(self._index_sampler) and not has_torch_mode():
            self._batch_rows = iter_batch_rows(self._index_sampler)

    def _record_batch(self, begin: float) -> None:
        """Count a batch and its time in the statistics."""
        self._statistics.waited_s += perf_counter() - begin
        self._statistics.batches += 1

    __getstate__ = refusal_to_pickle(_SingleProcessDataLoaderIter)


uncounted(MemoryIterator.__next__)


def _raise(error: Exception) -> Any:
    raise error


class MemoryWorkersIterator(_MultiProcessingDataLoaderIter):
    """torch's multi-process iterator without processes: tasks run in the script's process.

    torch's code decides when rows are drawn, which worker a batch belongs to, and what follows an
    error. A task runs when that code waits for its result, or earlier in a prefetch thread.
    """

    is_over = False

    def __init__(self, loader: Any, statistics: Statistics) -> None:
        self._shutdown = True  # if this constructor raises, there is nothing to shut down
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
        """Always empty; scripts may read this attribute of torch's iterator."""
        self._tasks: deque[Any] = deque()
        queue: Any = _TaskQueue(self._tasks)
        self._index_queues = [queue] * loader.num_workers
        self._snapshot = dataset
        self._gather = BatchGatherer(columns)
        self._torch_fetcher = _DatasetKind.create_fetcher(
            _DatasetKind.Map, dataset, True, self._collate_fn, False
        )
        self._is_grad_enabled = torch.is_grad_enabled()
        self._thread: BatchThread | None = None
        self._is_thread_used = False
        self._trial: PrefetchTrial | None = None
        self._shutdown = False
        self._reset(loader, first_iter=True)

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start an epoch with a new trial of the prefetch thread."""
        self._tasks.clear()
        self._thread, self._is_thread_used = None, False
        self._trial = PrefetchTrial(self._statistics)
        self.is_over = False
        sampler = self._index_sampler
        self._index_sampler = _BatchRowsSampler(sampler)
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
            self._update_trial(self._trial, begin, end)
        return batch

    def _get_data(self) -> tuple[Any, Any]:
        """Run the next task, and return its number and its batch or error."""
        task, batch = self._next_result()
        if isinstance(task, _ResumeIteration):
            return task, None
        number, rows = task
        if batch is None:
            worker_id = self._task_info[number][0]
            worker = WorkerIdentity(
                worker_id, self._num_workers, self._base_seed + worker_id, self._snapshot,
                self._is_grad_enabled,
            )  # fmt: skip
            with torch._C.DisableTorchFunction(), _disable_current_modes():
                batch = fetch_as_worker(worker, self._torch_fetcher, as_list(rows))
        if self._pin_memory and not isinstance(batch, ExceptionWrapper):
            batch = _utils.pin_memory.pin_memory(batch, self._pin_memory_device)
        return number, batch

    def _next_result(self) -> tuple[Any, Any]:
        """Return the next task and its batch; None instead of the batch if torch must load it."""
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
        if not has_torch_mode():
            return task, _gather_task(self._gather, task)
        # torch modes of this process do not see the operators of workers
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return task, _gather_task(self._gather, task)

    def _update_trial(self, trial: PrefetchTrial, begin: float, end: float) -> None:
        """Record a step, and start or stop using the prefetch thread as the trial says."""
        trial.step(begin, end)
        self._is_thread_used = trial.is_prefetching
        if trial.is_prefetching and self._thread is None:
            try:
                self._thread = BatchThread(partial(_gather_task, self._gather))
            except RuntimeError:  # the system refuses another thread
                self._trial = None
        if trial.is_over:
            self._trial = None

    def _shutdown_workers(self) -> None:
        self._shutdown = True
        self._thread = None

    __getstate__ = refusal_to_pickle(_MultiProcessingDataLoaderIter)


uncounted(MemoryWorkersIterator.__next__)


def _gather_task(gather: BatchGatherer, task: tuple[int, Any]) -> Any:
    return gather(task[1])


class _TaskQueue:
    """Stand-in for the index queues of all workers: `put` appends to one deque."""

    def __init__(self, tasks: deque[Any]) -> None:
        self.put = tasks.append


class _BatchRowsSampler:
    """A batch sampler that yields ranges or tensors of rows where the order can be computed."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler

    def __iter__(self) -> Iterator[Any]:
        if has_known_order(self._sampler) and not has_torch_mode():
            return iter_batch_rows(self._sampler)
        return iter(self._sampler)
