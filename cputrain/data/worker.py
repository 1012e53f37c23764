"""What runs in a worker process: torch's own loop, between our ends of the pipes."""

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
from cputrain.data.epoch_prefetch import Ahead, Forget
from cputrain.data.packed_samples import settle
from cputrain.data.random_states import ProcessStates
from cputrain.data.results import Result
from cputrain.data.sample_sharing import leave_objects_alone, replace_in_worker
from cputrain.data.worker_errors import without_frames
from cputrain.ipc.arena import Writer
from cputrain.ipc.exit_with_owner import exit_with_owner
from cputrain.ipc.serialization import empty_in_arena, pack, spill, unpack
from cputrain.ipc.thread_limits import limit_numpy_threads
from cputrain.runtime.patching import uncounted, without_ours

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.data.sample_sharing import Replacement
    from cputrain.data.transport import DoneEvent, WorkerEnds


_DATASET = 1
"""The place of the dataset among the arguments of torch's loop."""

READY = b"\1"
"""What a worker that has been started says first."""


def serve(
    takes_interrupts: bool, ends: WorkerEnds, replacements: Sequence[Replacement], *job: Any
) -> None:
    """Make batches until the loader wants no more, or its process ends, or Ctrl-C is pressed."""
    leave_objects_alone(replacements)
    exit_with_owner(ends.owner)
    ends.close_others()
    try:
        if takes_interrupts:  # blocked while this process started
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        with suppress(BrokenPipeError):  # nobody reads: the first look at the tasks tells
            ends.send.send_bytes(READY)
        _make_batches(ends, replacements, *job)
    except KeyboardInterrupt:
        return  # the script's process raises it
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _make_batches(
    ends: WorkerEnds,
    replacements: Sequence[Replacement],
    loop: Callable[..., None],
    args: tuple[Any, ...],
    roles: dict[int, str],
    payload: Any,
) -> None:
    writer = Writer(ends.memory)
    clock = _Clock()
    done = _Done(ends.done)
    results = _Results(ends, writer, clock)
    tasks = _Tasks(ends, writer, clock, done, results)
    arguments = list(args)
    if payload is not None:
        try:
            notice = ends.take.recv_bytes()
        except (EOFError, OSError):  # the loader's process has ended
            return
        for place, argument in payload.load(notice).items():
            arguments[place] = argument
        payload.close()
    dataset = arguments[_DATASET]
    if isinstance(dataset, CachedDataset):
        dataset.dataset = replace_in_worker(replacements, dataset.dataset)
        tasks.begins_epoch = dataset.look_again
    else:
        arguments[_DATASET] = replace_in_worker(replacements, dataset)
    ours = {"tasks": tasks, "results": results, "done": done}
    for place, role in roles.items():
        arguments[place] = ours[role] if role in ours else _timed(arguments[place], clock)
    _collate_into(writer)
    if not ends.others:
        limit_numpy_threads()
    loop(*arguments)
    if tasks.are_over:
        results.end()


class _Clock:
    """Times of the batch being made."""

    def __init__(self) -> None:
        self.begun = 0.0
        self.collating = 0.0


def _timed(collate_fn: Callable[[Any], Any], clock: _Clock) -> Callable[[Any], Any]:
    def timed(samples: Any) -> Any:
        begin = time.perf_counter()
        try:
            return collate_fn(samples)
        except BaseException as error:  # its text is told, and has the frames of plain python
            error.__traceback__ = without_ours(error)
            raise
        finally:
            clock.collating += time.perf_counter() - begin

    return uncounted(timed)


class _Done:
    """The loader's event; also set when the loader is gone."""

    def __init__(self, event: DoneEvent) -> None:
        self._event = event
        self.orphaned = False

    def is_set(self) -> bool:
        return self.orphaned or self._event.is_set()

    def skips(self, epoch: int) -> bool:
        return self._event.skips(epoch)


class _Tasks:
    """The queue of tasks, at the worker's end."""

    def __init__(
        self, ends: WorkerEnds, writer: Writer, clock: _Clock, done: _Done, results: _Results
    ) -> None:
        self._take = ends.take
        self._writer = writer
        self._results = results
        self._clock = clock
        self._done = done
        self.are_over = False
        """Whether the loader has said that no more will come."""
        self.begins_epoch: Callable[[], None] | None = None
        """What is done before the tasks of another epoch."""
        self._before: tuple[int, ProcessStates] | None = None
        """The random states before the first task of an epoch that had not begun."""

    def get(self, timeout: float | None = None) -> Any:
        while True:
            try:
                if not self._take.poll(timeout):
                    raise queue.Empty
                message = self._take.recv_bytes()
            except (EOFError, OSError):  # the loader's process has ended
                self._done.orphaned = self.are_over = True
                return None
            returned, num_taken, task = unpack(message, ())
            settle()
            self._writer.release(returned)
            self._results.release(num_taken)
            if self._is_wanted(task):
                self.are_over = task is None
                self._clock.collating = 0.0
                self._clock.begun = time.perf_counter()
                return task

    def _is_wanted(self, task: Any) -> bool:
        if isinstance(task, Forget):
            if self._before is not None and self._before[0] == task.epoch:
                self._before[1].restore()
            self._before = None
            return False
        if type(task) is tuple and isinstance(task[0], Ahead):
            epoch = task[0].epoch
            if self._done.skips(epoch):
                return False
            if self._before is None or self._before[0] != epoch:
                self._before = (epoch, ProcessStates())
                self._begin_epoch()
        elif isinstance(task, _ResumeIteration):
            self._begin_epoch()
        return True

    def _begin_epoch(self) -> None:
        if self.begins_epoch is not None:
            self.begins_epoch()


class _Results:
    """The queue of results, at the worker's end."""

    def __init__(self, ends: WorkerEnds, writer: Writer, clock: _Clock) -> None:
        self._send = ends.send
        self._writer = writer
        self._clock = clock
        self._num_sent = 0
        self._unopened: deque[tuple[int, list[torch.UntypedStorage]]] = deque()
        """Shared tensors that the loader may have yet to open, by the number of their result."""

    def release(self, num_taken: int) -> None:
        """Let go of the shared tensors of so many results."""
        while self._unopened and self._unopened[0][0] <= num_taken:
            self._unopened.popleft()

    def put(self, result: tuple[Any, Any]) -> None:
        now = time.perf_counter()
        if isinstance(result[1], ExceptionWrapper):
            result[1].exc_msg = without_frames(result[1].exc_msg)
        making = now - self._clock.begun - self._clock.collating
        shared: list[torch.UntypedStorage] = []
        try:
            data, lent = pack(result, self._writer, shared=shared)
        except Exception as error:  # whatever the batch is made of: the loader must be told
            data, lent = pack((result[0], _unsendable(result[1], error)), self._writer)
        self._num_sent += 1
        if shared:
            self._unopened.append((self._num_sent, shared))
        data = spill(data, lent, self._writer)
        message = Result(
            making, self._clock.collating, time.perf_counter() - now, not data, lent, data
        )
        try:
            self._send.send_bytes(message.encode())
        except BrokenPipeError:  # nobody reads: the next look at the tasks tells that it is over
            return

    def end(self) -> None:
        """The last message: this worker ends as it should."""
        try:
            self._send.send_bytes(b"")
        except OSError:
            return

    def cancel_join_thread(self) -> None:
        """There is no thread."""

    def close(self) -> None:
        """The process ends."""


def _unsendable(data: Any, error: Exception) -> ExceptionWrapper:
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


def _collate_into(writer: Writer) -> None:
    """Have default_collate stack large tensors straight into the arena."""
    torch_collate: Callable[..., torch.Tensor] = collate.collate_tensor_fn
    if collate.default_collate_fn_map.get(torch.Tensor) is not torch_collate:
        return  # the script has put its own in that place

    def collate_tensor(
        batch: Any, *, collate_fn_map: dict[Any, Callable[..., Any]] | None = None
    ) -> torch.Tensor:
        first = batch[0]
        try:
            if _can_stack_like(first):
                room = empty_in_arena((len(batch), *first.shape), first.dtype, writer)
                return torch.stack(batch, 0, out=room)
        except (RuntimeError, TypeError):
            pass  # torch's own says why
        try:
            return torch_collate(batch, collate_fn_map=collate_fn_map)
        except BaseException as error:
            error.__traceback__ = without_ours(error)
            raise

    collate.default_collate_fn_map[torch.Tensor] = collate_tensor


def _can_stack_like(first: torch.Tensor) -> bool:
    """Whether torch's collate_fn would stack into a plain CPU tensor of this one's dtype."""
    return (
        type(first) is torch.Tensor
        and first.device.type == "cpu"
        and first.layout is torch.strided
        and not first.is_nested
        and not first.is_conj()  # of these, torch's makes no room in a worker
        and not first.is_neg()
    )
