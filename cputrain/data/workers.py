"""The iterator that loads batches in worker processes."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch._C import _remove_worker_pids
from torch.utils.data import _utils
from torch.utils.data._utils.worker import _ResumeIteration
from torch.utils.data.dataloader import (
    _BaseDataLoaderIter,
    _DatasetKind,
    _MultiProcessingDataLoaderIter,
)

from cputrain.data.cached_dataset import CachedWorkerInit
from cputrain.data.epoch_prefetch import (
    DiscardEpoch,
    EpochPrefetch,
    PrefetchTask,
    may_change_between_epochs,
    predict_next_epoch,
)
from cputrain.data.random_states import SamplerStates
from cputrain.data.resume import LoaderProxy
from cputrain.data.torch_step import hide_frames
from cputrain.data.transport import Transport
from cputrain.errors import UnguardedMain
from cputrain.ipc.interrupts import deferred_signals, finalizer, redeliver_interrupts

if TYPE_CHECKING:
    from cputrain.data.cached_dataset import CachedDataset
    from cputrain.data.sample_sharing import SampleSharing
    from cputrain.data.statistics import Statistics


class WorkersIterator(_MultiProcessingDataLoaderIter):
    """torch's multi-process iterator on `Transport`, which may also prefetch the next epoch.

    Args:
        loader: The loader.
        statistics: Gets decisions and times.
        can_prefetch_epochs: Whether the loader allows batches of the next epoch to be prefetched.
        sharing: Copies containers of samples into shared memory; None to leave them as they are.
        cached: The dataset that reads and writes the loader's cache, if it has one.
    """

    is_over = False

    # defaults for finalization after an interrupt at any line of `__init__`
    _shutdown = True
    _workers: list[Any] = []
    _owner_pid = -1
    """The id of the process that created the iterator; forked copies leave its workers alone."""
    _transport: Transport | None = None
    _is_interrupted = False
    """Whether Ctrl-C was pressed while workers started or the script waited for a batch."""
    _sigchld_handler: Any = None
    """The SIGCHLD handler to restore after workers have been killed."""

    def __init__(
        self,
        loader: Any,
        statistics: Statistics,
        *,
        can_prefetch_epochs: bool,
        sharing: SampleSharing | None,
        cached: CachedDataset | None,
    ) -> None:
        begin = time.perf_counter()
        # torch's shutdown reads it, even if its constructor has not run
        self._workers_status = [True] * loader.num_workers
        self._owner_pid = os.getpid()
        redeliver_interrupts()
        _iterators.add(self)
        if not _is_registered_at_exit:
            atexit.register(_unregister_worker_pids)
            _is_registered_at_exit.append(True)
        self._statistics = statistics
        context = loader.multiprocessing_context or torch.multiprocessing
        replacements = []
        if sharing is not None and loader._dataset_kind == _DatasetKind.Map:
            is_forked = context.get_start_method() == "fork"
            replacements = sharing.replacements(
                loader.dataset, statistics.notes, is_forked=is_forked
            )
        transport = self._transport = Transport(
            context, loader.collate_fn, statistics, replacements
        )
        self._next_epoch: EpochPrefetch | None = None
        self._epoch = 0
        """The number of the latest epoch that was prefetched."""
        self._num_resuming = 0
        """Workers that have been sent the next epoch's start and have not confirmed it yet."""
        self._can_prefetch_epochs = (
            can_prefetch_epochs
            and loader.persistent_workers
            and loader._dataset_kind == _DatasetKind.Map
            and not may_change_between_epochs(
                loader.dataset, loader.collate_fn, loader.worker_init_fn
            )
        )
        try:
            attributes: dict[str, Any] = {"multiprocessing_context": transport}
            if cached is not None:
                attributes["dataset"] = cached
                attributes["worker_init_fn"] = CachedWorkerInit(cached, loader.worker_init_fn)
            super().__init__(LoaderProxy(loader, **attributes))
        except KeyboardInterrupt:
            self._is_interrupted = True
            raise
        transport.finish_start()
        statistics.starting_s += time.perf_counter() - begin

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except RuntimeError as error:
            # raised by torch's check of its workers, or at any line by its SIGCHLD handler
            if not str(error).startswith("DataLoader worker (pid"):
                hide_frames(error)
                raise
            if self._transport is not None and self._transport.has_unguarded_main():
                self._is_interrupted = True  # workers that still import the script can be killed
                self._shutdown_workers()
                raise UnguardedMain(
                    "a DataLoader with workers that are spawned",
                    'must be iterated under `if __name__ == "__main__":`',
                    found="that workers, which import the script, began to iterate it too",
                    do="Indent the code that runs the training under that line, or into a function "
                    "that is called under it; or fork workers: "
                    'DataLoader(…, multiprocessing_context="fork").',
                ) from None
            raise RuntimeError(f"{error}: {self._describe_exits()}") from error.__cause__
        except BaseException as error:
            self._is_interrupted = isinstance(error, KeyboardInterrupt)
            hide_frames(error)
            raise

    def _next_data(self) -> Any:
        """Return the next batch, and record the time that the script waits for it."""
        begin = time.perf_counter()
        try:
            data = super()._next_data()
        except StopIteration:
            self.is_over = True
            raise
        finally:
            self._statistics.waited_s += time.perf_counter() - begin
        self._statistics.batches += 1
        return data

    def _try_get_data(self, *args: Any, **kwargs: Any) -> tuple[bool, Any]:
        """Return the next result of this epoch; store results of the prefetched epoch."""
        while True:
            is_received, result = super()._try_get_data(*args, **kwargs)
            if is_received and isinstance(result[0], PrefetchTask):
                epoch, number = result[0]
                if self._next_epoch is not None and epoch == self._next_epoch.number:
                    self._next_epoch.results[number] = result[1]
                elif epoch == self._epoch:
                    return True, (number, result[1])
            elif is_received and isinstance(result[0], _ResumeIteration) and self._num_resuming:
                self._num_resuming -= 1
            else:
                return is_received, result

    def _try_put_index(self) -> None:
        """Send the next task of this epoch, or else of the next one."""
        sent = self._send_idx
        super()._try_put_index()
        if self._can_prefetch_epochs and self._send_idx == sent:
            self._send_prefetch_task()

    def _send_prefetch_task(self) -> None:
        """Send one more task of the next epoch; called after the last task of this epoch."""
        max_batches = self._prefetch_factor * self._num_workers
        if self._next_epoch is None:
            self._next_epoch = predict_next_epoch(self._index_sampler, self._epoch + 1, max_batches)
            if self._next_epoch is None:
                self._can_prefetch_epochs = False
                return
        epoch = self._next_epoch
        if epoch.num_sent == len(epoch.rows):
            return
        worker_id = epoch.num_sent % self._num_workers
        if epoch.num_sent < self._num_workers:
            self._resume_worker(worker_id)
        self._index_queues[worker_id].put(
            (PrefetchTask(epoch.number, epoch.num_sent), epoch.rows[epoch.num_sent])
        )
        epoch.num_sent += 1

    def _resume_worker(self, worker_id: int) -> None:
        """Send a worker torch's message that an epoch begins."""
        self._index_queues[worker_id].put(_ResumeIteration(self._shared_seed))
        self._num_resuming += 1

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start an epoch, with its prefetched batches if they match the sampler's order."""
        epoch = None if first_iter else self._next_epoch
        self.is_over = False
        self._next_epoch = None
        if epoch is None or not epoch.num_sent:
            super()._reset(loader, first_iter)
            return
        if self._tasks_outstanding:  # the script has abandoned the last epoch
            self._discard(epoch, "the script left the last epoch before its end")
            super()._reset(loader, first_iter)
            return
        states = SamplerStates(self._index_sampler)
        _BaseDataLoaderIter._reset(self, loader, first_iter)
        rows = list(itertools.islice(self._sampler_iter, epoch.num_sent))
        if epoch.matches(rows):
            self._start_prefetched(epoch)
            return
        states.restore()
        self._discard(epoch, "its order was not as predicted")
        super()._reset(loader, first_iter)

    def _start_prefetched(self, epoch: EpochPrefetch) -> None:
        """Start an epoch with the tasks that have been sent, and the results received."""
        self._epoch = epoch.number
        num_workers = self._num_workers
        worker_ids = [number % num_workers for number in range(epoch.num_sent)]
        for worker_id in range(epoch.num_sent, num_workers):
            self._resume_worker(worker_id)
        self._send_idx, self._rcvd_idx = epoch.num_sent, 0
        self._task_info = {
            number: (worker_id, epoch.results[number]) if number in epoch.results else (worker_id,)
            for number, worker_id in enumerate(worker_ids)
        }
        self._tasks_outstanding = epoch.num_sent - len(epoch.results)
        self._workers_status = [True] * num_workers
        self._workers_num_tasks = [worker_ids.count(i) for i in range(num_workers)]
        self._worker_queue_idx_cycle = itertools.cycle(range(num_workers))
        for _ in range(epoch.num_sent % num_workers):
            next(self._worker_queue_idx_cycle)
        for _ in range(self._prefetch_factor * num_workers - epoch.num_sent):
            self._try_put_index()

    def _discard(self, epoch: EpochPrefetch, reason: str) -> None:
        """Stop prefetching epochs, and have workers restore their states before this epoch."""
        self._can_prefetch_epochs = False
        self._statistics.notes.append(f"the next epoch is no longer prefetched: {reason}")
        self._epoch = epoch.number + 1
        assert self._transport is not None
        self._transport.done.skip(epoch.number)
        for worker_id in range(self._num_workers):
            self._index_queues[worker_id].put(DiscardEpoch(epoch.number))

    def _shutdown_workers(self) -> None:
        with deferred_signals(self._kill_workers):
            self._end_workers()

    def _end_workers(self) -> None:
        """Wait for the workers to exit; kill them if the script has been interrupted."""
        if os.getpid() != self._owner_pid:
            return
        # when the interpreter exits, multiprocessing ends the workers before modules are finalized
        is_exiting = getattr(_utils, "python_exit_status", None) is not False
        if self._is_interrupted and not self._shutdown and not is_exiting:
            self._kill_workers()
        try:
            super()._shutdown_workers()
        finally:
            if self._shutdown and self._transport is not None:
                # kill workers that torch does not know of, after an interrupted start
                self._transport.owner.close()
            if self._sigchld_handler is not None:
                signal.signal(signal.SIGCHLD, self._sigchld_handler)
                self._sigchld_handler = None

    def _kill_workers(self) -> None:
        """Kill the workers, if this is the main thread; it alone can set a signal handler."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._sigchld_handler is None:
            # torch's handler would raise an error for killed workers
            self._sigchld_handler = signal.signal(signal.SIGCHLD, _ignore)
        for worker in self._workers:
            worker.kill()

    __del__ = finalizer(_end_workers, _kill_workers)

    def __getstate__(self) -> Any:
        """Raise torch's error, with the name of torch's class."""
        raise NotImplementedError("{} cannot be pickled", _MultiProcessingDataLoaderIter.__name__)

    def _describe_exits(self) -> str:
        """Return how each worker that has exited did so."""
        return ", ".join(
            f"worker {worker_id} (pid {worker.pid}) {_describe_exit(worker.exitcode)}"
            for worker_id, worker in enumerate(self._workers)
            if not worker.is_alive()
        )


_iterators: weakref.WeakSet[WorkersIterator] = weakref.WeakSet()
_is_registered_at_exit: list[bool] = []


def _unregister_worker_pids() -> None:
    """Unregister workers from torch's SIGCHLD handler before multiprocessing ends them at exit."""
    for iterator in list(_iterators):
        if iterator._owner_pid == os.getpid() and getattr(iterator, "_worker_pids_set", False):
            iterator._worker_pids_set = False
            _remove_worker_pids(id(iterator))


def _ignore(*_: object) -> None:
    """Do nothing; unlike with SIG_IGN, children can still be waited for."""


def _describe_exit(code: int | None) -> str:
    """Return how a process with this exit code of `multiprocessing` ended."""
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system may be out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
