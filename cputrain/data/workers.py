"""Batches made by worker processes."""

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

from cputrain.data.cached_dataset import WorkerInit
from cputrain.data.epoch_prefetch import (
    Ahead,
    EpochPrefetch,
    Forget,
    foretell,
    may_change_between_epochs,
)
from cputrain.data.random_states import SamplerStates
from cputrain.data.resume import StandIn
from cputrain.data.torch_step import hide_frames
from cputrain.data.transport import Transport
from cputrain.errors import UnguardedMain
from cputrain.ipc.interrupts import deferred_signals, finalizer, redeliver_interrupts

if TYPE_CHECKING:
    from cputrain.data.cached_dataset import CachedDataset
    from cputrain.data.sample_sharing import SampleSharing
    from cputrain.data.statistics import Statistics


class WorkersIterator(_MultiProcessingDataLoaderIter):
    """torch's iterator, with our ways between the processes."""

    is_over = False

    # an iterator may be interrupted at any line of `__init__`, and is collected all the same
    _shutdown = True
    _workers: list[Any] = []
    _owner = -1
    """The process that made it; a forked one has a copy, and nothing to say to its workers."""
    _transport: Transport | None = None
    _interrupted = False
    """Whether Ctrl-C was pressed while the script waited for a batch, or workers were started."""
    _sigchld_handler: Any = None
    """The script's handler, while workers are killed."""

    def __init__(
        self,
        loader: Any,
        statistics: Statistics,
        *,
        looks_ahead: bool,
        sharing: SampleSharing | None,
        cached: CachedDataset | None,
    ) -> None:
        begin = time.perf_counter()
        self._workers_status = [
            True
        ] * loader.num_workers  # torch's end looks, should it come early
        self._owner = os.getpid()
        redeliver_interrupts()
        _iterators.add(self)
        if not _forgets_at_exit:
            atexit.register(_forget_workers)
            _forgets_at_exit.append(True)
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
        """The number of this epoch, if any of it was sent before it began."""
        self._resumed = 0
        """Workers that have been told of the next epoch, and whose answer has not been heard."""
        self._looks_ahead = (
            looks_ahead
            and loader.persistent_workers
            and loader._dataset_kind == _DatasetKind.Map
            and not may_change_between_epochs(
                loader.dataset, loader.collate_fn, loader.worker_init_fn
            )
        )
        try:
            changed: dict[str, Any] = {"multiprocessing_context": transport}
            if cached is not None:
                changed["dataset"] = cached
                changed["worker_init_fn"] = WorkerInit(cached, loader.worker_init_fn)
            super().__init__(StandIn(loader, **changed))
        except KeyboardInterrupt:
            self._interrupted = True
            raise
        transport.started()
        statistics.starting_s += time.perf_counter() - begin

    def __next__(self) -> Any:
        try:
            return super().__next__()
        except RuntimeError as error:
            # found when torch looked at its workers, or by its handler of SIGCHLD, anywhere in here
            if not str(error).startswith("DataLoader worker (pid"):
                hide_frames(error)
                raise
            if self._transport is not None and self._transport.has_unguarded_main():
                self._interrupted = True  # those that still import the script have nothing to end
                self._shutdown_workers()
                raise UnguardedMain(
                    "a DataLoader with workers that are spawned",
                    'must be iterated under `if __name__ == "__main__":`',
                    found="that workers, which import the script, began to iterate it too",
                    do="Indent the code that runs the training under that line, or into a function "
                    "that is called under it; or fork workers: "
                    'DataLoader(…, multiprocessing_context="fork").',
                ) from None
            raise RuntimeError(f"{error}: {self._deaths()}") from error.__cause__
        except BaseException as error:
            self._interrupted = isinstance(error, KeyboardInterrupt)
            hide_frames(error)
            raise

    def _next_data(self) -> Any:
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
        while True:
            came, result = super()._try_get_data(*args, **kwargs)
            if came and isinstance(result[0], Ahead):
                epoch, number = result[0]
                if self._next_epoch is not None and epoch == self._next_epoch.number:
                    self._next_epoch.made[number] = result[1]
                elif epoch == self._epoch:
                    return True, (number, result[1])
            elif came and isinstance(result[0], _ResumeIteration) and self._resumed:
                self._resumed -= 1
            else:
                return came, result

    def _try_put_index(self) -> None:
        sent = self._send_idx
        super()._try_put_index()
        if self._looks_ahead and self._send_idx == sent:
            self._look_ahead()

    def _look_ahead(self) -> None:
        """This epoch's rows are all sent: ask for one more batch of the next."""
        most = self._prefetch_factor * self._num_workers
        if self._next_epoch is None:
            self._next_epoch = foretell(self._index_sampler, self._epoch + 1, most)
            if self._next_epoch is None:
                self._looks_ahead = False
                return
        coming = self._next_epoch
        if coming.sent == len(coming.rows):
            return
        place = coming.sent % self._num_workers
        if coming.sent < self._num_workers:
            self._resume(place)
        self._index_queues[place].put((Ahead(coming.number, coming.sent), coming.rows[coming.sent]))
        coming.sent += 1

    def _resume(self, place: int) -> None:
        self._index_queues[place].put(_ResumeIteration(self._shared_seed))
        self._resumed += 1

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        coming = None if first_iter else self._next_epoch
        self.is_over = False
        self._next_epoch = None
        if coming is None or not coming.sent:
            super()._reset(loader, first_iter)
            return
        if self._tasks_outstanding:  # the script has left this epoch before its end
            self._forget(coming, "the last epoch was left early")
            super()._reset(loader, first_iter)
            return
        states = SamplerStates(self._index_sampler)
        _BaseDataLoaderIter._reset(self, loader, first_iter)
        rows = list(itertools.islice(self._sampler_iter, coming.sent))
        if coming.is_as_foretold(rows):
            self._adopt(coming)
            return
        states.restore()
        self._forget(coming, "its order was not as foretold")
        super()._reset(loader, first_iter)

    def _adopt(self, coming: EpochPrefetch) -> None:
        """Begin the epoch with what has been sent and made of it."""
        self._epoch = coming.number
        workers = self._num_workers
        places = [number % workers for number in range(coming.sent)]
        for place in range(coming.sent, workers):
            self._resume(place)
        self._send_idx, self._rcvd_idx = coming.sent, 0
        self._task_info = {
            number: (place, coming.made[number]) if number in coming.made else (place,)
            for number, place in enumerate(places)
        }
        self._tasks_outstanding = coming.sent - len(coming.made)
        self._workers_status = [True] * workers
        self._workers_num_tasks = [places.count(place) for place in range(workers)]
        self._worker_queue_idx_cycle = itertools.cycle(range(workers))
        for _ in range(coming.sent % workers):
            next(self._worker_queue_idx_cycle)
        for _ in range(self._prefetch_factor * workers - coming.sent):
            self._try_put_index()

    def _forget(self, coming: EpochPrefetch, why: str) -> None:
        """Have workers go back to where they were before the next epoch's first task."""
        self._looks_ahead = False
        self._statistics.notes.append(f"the next epoch is no longer begun early: {why}")
        self._epoch = coming.number + 1
        assert self._transport is not None
        self._transport.done.skip(coming.number)
        for place in range(min(coming.sent, self._num_workers)):
            self._index_queues[place].put(Forget(coming.number))

    def _shutdown_workers(self) -> None:
        with deferred_signals(self._kill_workers):
            self._end_workers()

    def _end_workers(self) -> None:
        """Wait until the workers have ended; kill them if the script has been interrupted."""
        if os.getpid() != self._owner:
            return
        # (at the interpreter's end multiprocessing does so, before modules are taken down)
        is_exiting = getattr(_utils, "python_exit_status", None) is not False
        if self._interrupted and not self._shutdown and not is_exiting:
            self._kill_workers()
        try:
            super()._shutdown_workers()
        finally:
            if self._shutdown and self._transport is not None:
                # kills those that torch does not know of: a start may have been interrupted
                self._transport.owner.close()
            if self._sigchld_handler is not None:
                signal.signal(signal.SIGCHLD, self._sigchld_handler)
                self._sigchld_handler = None

    def _kill_workers(self) -> None:
        """End the workers at once: nobody waits for what they are doing any more."""
        if threading.current_thread() is not threading.main_thread():
            return
        if self._sigchld_handler is None:
            # torch's handler would tell of workers that were killed
            self._sigchld_handler = signal.signal(signal.SIGCHLD, _ignore)
        for worker in self._workers:
            worker.kill()

    __del__ = finalizer(_end_workers, _kill_workers)

    def __getstate__(self) -> Any:
        """Raise torch's error, with the name of torch's class."""
        raise NotImplementedError("{} cannot be pickled", _MultiProcessingDataLoaderIter.__name__)

    def _deaths(self) -> str:
        """How each worker that is gone ended."""
        return ", ".join(
            f"worker {place} (pid {worker.pid}) {_ending(worker.exitcode)}"
            for place, worker in enumerate(self._workers)
            if not worker.is_alive()
        )


_iterators: weakref.WeakSet[WorkersIterator] = weakref.WeakSet()
_forgets_at_exit: list[bool] = []


def _forget_workers() -> None:
    """Have torch's handler of SIGCHLD silent: multiprocessing ends the workers that are left."""
    for iterator in list(_iterators):
        if iterator._owner == os.getpid() and getattr(iterator, "_worker_pids_set", False):
            iterator._worker_pids_set = False
            _remove_worker_pids(id(iterator))


def _ignore(*_: object) -> None:
    """Do nothing, as the system does with this signal by itself; it is noticed otherwise."""


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system may be out of memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"
