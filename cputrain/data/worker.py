"""The code of a worker process: torch's worker loop with this package's queues and event."""

from __future__ import annotations

import queue
import signal
import sys
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch._utils import ExceptionWrapper
from torch.utils.data._utils import collate
from torch.utils.data._utils.worker import _ResumeIteration

from cputrain.data.cached_dataset import CachedDataset
from cputrain.data.epoch_prefetch import DiscardEpoch, PrefetchTask
from cputrain.data.packed_samples import release_samples
from cputrain.data.random_states import ProcessStates
from cputrain.data.results import Result
from cputrain.data.sample_sharing import freeze_objects, replace_in_worker
from cputrain.data.worker_errors import without_frames
from cputrain.ipc.arena import Writer
from cputrain.ipc.exit_with_owner import exit_with_owner
from cputrain.ipc.serialization import empty_in_arena, pack, spill, unpack
from cputrain.ipc.thread_limits import limit_numpy_threads
from cputrain.runtime.patching import uncounted, without_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.data.sample_sharing import Replacement
    from cputrain.data.transport import DoneEvent, LoaderWorkerEnds


_DATASET = 1
"""The index of the dataset among the arguments of torch's worker loop."""

READY = b"\1"
"""The first message of a worker."""


def run_worker(
    should_unblock_sigint: bool,
    ends: LoaderWorkerEnds,
    replacements: Sequence[Replacement],
    *job: Any,
) -> None:
    """Load batches until the loader is done, its process exits, or Ctrl-C is pressed.

    Args:
        should_unblock_sigint: Whether SIGINT was unblocked in the process that started this one.
        ends: The worker's ends of its link.
        replacements: Containers that a forked worker replaces by shared samples.
        job: torch's worker loop, its arguments, their roles, and a payload or None.
    """
    freeze_objects(replacements)
    exit_with_owner(ends.owner)
    ends.close_loader_ends()
    try:
        if should_unblock_sigint:  # SIGINT was blocked while this process started
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with suppress(BrokenPipeError):  # the loader is closed: reading the first task shows it
            ends.results.send_bytes(READY)
        _run_loop(ends, replacements, *job)
    except KeyboardInterrupt:
        return  # the script's process raises KeyboardInterrupt
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _run_loop(
    ends: LoaderWorkerEnds,
    replacements: Sequence[Replacement],
    loop: Callable[..., None],
    args: tuple[Any, ...],
    roles: dict[int, str],
    payload: Any,
) -> None:
    """Complete the arguments of torch's worker loop, and call it."""
    writer = Writer(ends.memory)
    clock = _BatchClock()
    done = _WorkerDoneEvent(ends.done)
    results = _ResultSender(ends, writer, clock)
    tasks = _TaskReceiver(ends, writer, clock, done, results)
    arguments = list(args)
    if payload is not None:
        try:
            message = ends.tasks.recv_bytes()
        except (EOFError, OSError):  # the loader's process has exited
            return
        for index, argument in payload.load(message).items():
            arguments[index] = argument
        payload.close()
    dataset = arguments[_DATASET]
    if isinstance(dataset, CachedDataset):
        dataset.dataset = replace_in_worker(replacements, dataset.dataset)
        tasks.on_epoch = dataset.refresh
    else:
        arguments[_DATASET] = replace_in_worker(replacements, dataset)
    replaced = {"tasks": tasks, "results": results, "done": done}
    for index, role in roles.items():
        arguments[index] = replaced[role] if role in replaced else _timed(arguments[index], clock)
    _patch_collation(writer)
    if not ends.links:
        limit_numpy_threads()
    loop(*arguments)
    if tasks.are_over:
        results.send_end()


class _BatchClock:
    """The start time and the collation time of the batch that is being loaded."""

    def __init__(self) -> None:
        self.begin_s = 0.0
        self.collate_s = 0.0


def _timed(collate_fn: Callable[[Any], Any], clock: _BatchClock) -> Callable[[Any], Any]:
    """Return a collate_fn that adds its time to the clock."""

    def timed(samples: Any) -> Any:
        begin = time.perf_counter()
        try:
            return collate_fn(samples)
        except BaseException as error:  # the loader's process shows the traceback's text
            error.__traceback__ = without_ours(error)
            raise
        finally:
            clock.collate_s += time.perf_counter() - begin

    return uncounted(timed)


class _WorkerDoneEvent:
    """The loader's event, which is also set when the loader's process has exited."""

    def __init__(self, event: DoneEvent) -> None:
        self._event = event
        self.is_orphaned = False

    def is_set(self) -> bool:
        return self.is_orphaned or self._event.is_set()

    def skips(self, epoch: int) -> bool:
        return self._event.skips(epoch)


class _TaskReceiver:
    """The task queue in a worker."""

    def __init__(
        self,
        ends: LoaderWorkerEnds,
        writer: Writer,
        clock: _BatchClock,
        done: _WorkerDoneEvent,
        results: _ResultSender,
    ) -> None:
        self._connection = ends.tasks
        self._writer = writer
        self._results = results
        self._clock = clock
        self._done = done
        self.are_over = False
        """Whether the last task has been received."""
        self.on_epoch: Callable[[], None] | None = None
        """Called before the first task of a further epoch."""
        self._saved: tuple[int, ProcessStates] | None = None
        """A prefetched epoch, and the random states before its first task."""

    def get(self, timeout: float | None = None) -> Any:
        """Return the next task; None at the end, or if the loader's process has exited."""
        while True:
            try:
                if not self._connection.poll(timeout):
                    raise queue.Empty
                message = self._connection.recv_bytes()
            except (EOFError, OSError):  # the loader's process has exited
                self._done.is_orphaned = self.are_over = True
                return None
            returned, num_received, task = unpack(message, ())
            release_samples()
            self._writer.release(returned)
            self._results.release(num_received)
            if self._should_run(task):
                self.are_over = task is None
                self._clock.collate_s = 0.0
                self._clock.begin_s = time.perf_counter()
                return task

    def _should_run(self, task: Any) -> bool:
        """Handle what concerns epochs; return whether torch's worker loop should get the task."""
        if isinstance(task, DiscardEpoch):
            if self._saved is not None and self._saved[0] == task.epoch:
                self._saved[1].restore()
            self._saved = None
            return False
        if type(task) is tuple and isinstance(task[0], PrefetchTask):
            epoch = task[0].epoch
            if self._done.skips(epoch):
                return False
            if self._saved is None or self._saved[0] != epoch:
                self._saved = (epoch, ProcessStates())
                self._begin_epoch()
        elif isinstance(task, _ResumeIteration):
            self._begin_epoch()
        return True

    def _begin_epoch(self) -> None:
        if self.on_epoch is not None:
            self.on_epoch()


class _ResultSender:
    """The result queue in a worker."""

    def __init__(self, ends: LoaderWorkerEnds, writer: Writer, clock: _BatchClock) -> None:
        self._connection = ends.results
        self._writer = writer
        self._clock = clock
        self._num_sent = 0
        self._unopened: deque[tuple[int, list[torch.UntypedStorage]]] = deque()
        """Results by number, with their shared tensors, that the loader may not have opened yet."""

    def release(self, num_received: int) -> None:
        """Release the shared tensors of the first `num_received` results."""
        while self._unopened and self._unopened[0][0] <= num_received:
            self._unopened.popleft()

    def put(self, result: tuple[Any, Any]) -> None:
        """Send a batch or an error to the loader's process."""
        now = time.perf_counter()
        if isinstance(result[1], ExceptionWrapper):
            result[1].exc_msg = without_frames(result[1].exc_msg)
        samples_s = now - self._clock.begin_s - self._clock.collate_s
        shared: list[torch.UntypedStorage] = []
        try:
            data, lent = pack(result, self._writer, shared=shared)
        except Exception as error:  # pickling a batch may raise anything: the loader raises it
            data, lent = pack((result[0], _pickling_error(result[1], error)), self._writer)
        self._num_sent += 1
        if shared:
            self._unopened.append((self._num_sent, shared))
        data = spill(data, lent, self._writer)
        message = Result(
            samples_s, self._clock.collate_s, time.perf_counter() - now, not data, lent, data
        )
        try:
            self._connection.send_bytes(message.encode())
        except BrokenPipeError:  # the loader is closed: reading the next task shows it
            return

    def send_end(self) -> None:
        """Send the last message: this worker exits normally."""
        try:
            self._connection.send_bytes(b"")
        except OSError:
            return

    def cancel_join_thread(self) -> None:
        """No thread empties this queue."""

    def close(self) -> None:
        """Do nothing: the process exits next."""


def _pickling_error(data: Any, error: Exception) -> ExceptionWrapper:
    """Return the error that stands for a batch or an error that cannot be pickled."""
    info = torch.utils.data.get_worker_info()
    where = f"in DataLoader worker process {'' if info is None else info.id}"
    try:
        if isinstance(data, ExceptionWrapper):
            raise RuntimeError(
                f"{data.exc_type.__name__}, which cannot be pickled ({error}). It was raised "
                f"{data.where}.\nOriginal {data.exc_msg}"
            ) from None
        raise RuntimeError(
            f"a batch of type {type(data).__name__} cannot be sent to the loader's process: "
            f"{type(error).__name__}: {error}"
        ) from error
    except RuntimeError:
        return ExceptionWrapper(sys.exc_info(), where=where)


def _patch_collation(writer: Writer) -> None:
    """Make default_collate stack large tensors directly into shared memory."""
    torch_collate: Callable[..., torch.Tensor] = collate.collate_tensor_fn
    if collate.default_collate_fn_map.get(torch.Tensor) is not torch_collate:
        return  # the script has registered another function

    def collate_tensor(
        batch: Any, *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None
    ) -> torch.Tensor:
        first = batch[0]
        try:
            if _can_stack_like(first):
                out = empty_in_arena((len(batch), *first.shape), first.dtype, writer)
                return torch.stack(batch, 0, out=out)
        except (RuntimeError, TypeError):
            pass  # torch's function raises the error
        try:
            return torch_collate(batch, collate_fn_map=collate_fn_map)
        except BaseException as error:
            error.__traceback__ = without_ours(error)
            raise

    collate.default_collate_fn_map[torch.Tensor] = collate_tensor


def _can_stack_like(first: torch.Tensor) -> bool:
    """Return whether torch's collate_fn would stack into a plain CPU tensor of the same dtype."""
    return (
        type(first) is torch.Tensor
        and first.device.type == "cpu"
        and first.layout is torch.strided
        and not first.is_nested
        and not first.is_conj()  # torch's collate_fn does not stack these into shared memory
        and not first.is_neg()
    )
