"""A multiprocessing context for torch's multi-process iterator: its queues, event and processes.

torch's code decides which worker loads which batch, when, with which seed, and what happens after a
failure. This module only replaces the communication between the processes, and their start.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import select
import struct
import time
from collections import deque
from multiprocessing import connection, forkserver, resource_tracker
from typing import TYPE_CHECKING, Any, NamedTuple

from cputrain.data.payload import WorkerPayload
from cputrain.data.results import Result
from cputrain.data.sample_sharing import gc_paused
from cputrain.data.worker import READY, run_worker
from cputrain.errors import ResourceError
from cputrain.ipc.arena import ArenaMemory, Reader, starting_workers
from cputrain.ipc.exit_with_owner import OwnerPipe
from cputrain.ipc.interrupts import deferred_signals, interrupt_blocked
from cputrain.ipc.links import End, Inbox, Outbox, pipe
from cputrain.ipc.serialization import pack, unpack
from cputrain.ipc.shared_tensors import forget_opened_storages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cputrain.data.sample_sharing import Replacement
    from cputrain.data.statistics import Statistics


class Transport:
    """The multiprocessing context of one iterator.

    Args:
        context: The multiprocessing context that starts the processes.
        collate: The loader's collate_fn, to find it among the arguments of torch's worker loop.
        statistics: Gets the timings of results.
        replacements: Containers of the dataset that are in shared memory in workers.
    """

    def __init__(
        self,
        context: Any,
        collate: Callable[..., Any],
        statistics: Statistics,
        replacements: Sequence[Replacement],
    ) -> None:
        self._context = context
        self._collate = collate
        self._is_forked = context.get_start_method() == "fork"
        self._replacements = replacements
        self.results = ResultQueue(statistics)
        self.done = DoneEvent()
        self.owner = OwnerPipe(of="a DataLoader")
        self._has_result_queue = False
        self._payload: WorkerPayload | None = None
        self._first_args: tuple[Any, ...] | None = None
        self._links: list[Link] = []
        self._started: list[tuple[Link, Any]] = []
        """The links and processes of the workers that have been started."""
        if context.get_start_method() != "fork" and _is_worker_importing_main():
            os._exit(0)  # the loader's process detects it, and raises UnguardedMain

    def Queue(self) -> Any:  # noqa: N802  (torch calls this name)
        """Return the result queue at the first call, then a new task queue for each worker."""
        if not self._has_result_queue:
            self._has_result_queue = True
            return self.results
        self._links.append(Link())
        return self._links[-1]

    def Event(self) -> DoneEvent:  # noqa: N802
        """Return the event that tells workers to exit."""
        return self.done

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """Return a process that runs torch's worker loop on the link that was created last."""
        link = self._links[-1]
        queues = {id(link): "tasks", id(self.results): "results", id(self.done): "done"}
        roles = {index: queues[id(arg)] for index, arg in enumerate(args) if id(arg) in queues}
        # the last index, as a dataset may be its own collate_fn
        roles[max(i for i, arg in enumerate(args) if arg is self._collate)] = "collate"
        # the worker creates its own queues and event: these arguments are not pickled
        sent_args = tuple(
            None if roles.get(index, "collate") != "collate" else arg
            for index, arg in enumerate(args)
        )
        return WorkerProcess(
            self, link, link.open(self.done, self.owner, self._links), (target, sent_args, roles)
        )

    def start(self, link: Link, ends: LoaderWorkerEnds, job: tuple[Any, ...]) -> Any:
        """Start a worker's process, and receive its results; return the process.

        Args:
            link: The worker's link.
            ends: The worker's ends of the link.
            job: torch's worker loop, its arguments, and the roles of some arguments by index.
        """
        target, args, roles = job
        is_first = self._first_args is None
        is_forked = self._is_forked
        if not is_forked:
            args = _with_shared_samples(args, self._replacements)
        if is_first and not is_forked:
            self._payload = WorkerPayload.create(self._replacements)
        if is_first:
            self._first_args = args
        if self._payload is not None:
            small_args = tuple(
                None if _is_large(arg) and arg is first_arg else arg
                for arg, first_arg in zip(args, self._first_args or (), strict=True)
            )
            process = self._start_process((ends, (), target, small_args, roles, self._payload))
            if not is_first or self._payload.fill(
                {i: arg for i, arg in enumerate(args) if _is_large(arg)}
            ):
                assert link.outbox is not None
                link.outbox.send(self._payload.message())
                self.results.register(link, process)
                self._started.append((link, process))
                return process
            process.kill()
            process.join()
            self._payload.close()
            self._payload = None
        replacements = self._replacements if is_forked else ()
        process = self._start_process((ends, replacements, target, args, roles, None))
        self.results.register(link, process)
        self._started.append((link, process))
        return process

    def finish_start(self) -> None:
        """Close the descriptors that only starting workers need; call it after the last start."""
        self.done.memory.close_descriptor()
        if self._payload is not None:
            self._payload.close()

    def has_unguarded_main(self) -> bool:
        """Return whether a worker exited with 0 while it imported the main module."""
        return self._context.get_start_method() != "fork" and any(
            not link.is_ready and process.exitcode == 0 for link, process in self._started
        )

    def _start_process(self, args: tuple[Any, ...]) -> Any:
        """Start a process that calls `run_worker`; raise ResourceError if the system refuses."""
        method = self._context.get_start_method()
        # these two helper processes serve the whole program: start them before a signal is blocked
        if method != "fork":
            resource_tracker.ensure_running()
        if method == "forkserver":
            forkserver.ensure_running()
        # a forked copy of the script must not be interrupted before it runs worker code. A Ctrl-C
        # also ends a fork server that is starting; it is raised instead of the resulting error
        with deferred_signals(), interrupt_blocked() as should_unblock_sigint:
            process = self._context.Process(target=run_worker, args=(should_unblock_sigint, *args))
            process._name = _WorkerName(process._name)
            process.daemon = True
            try:
                with starting_workers(self.done.is_set), gc_paused(self._replacements):
                    process.start()
            except OSError as error:
                raise ResourceError.of(error, "a DataLoader's worker", "was not started") from error
        return process


class _WorkerName(str):
    """A process name that marks the new process, which unpickles it, as a loader's worker.

    The name is unpickled before the main module is imported. Unpickling must not import this
    package, as the script may have to change settings before.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        mark = f"__import__('multiprocessing').current_process()._config.update({_MARK}=True)"
        return eval, (f"{mark} or {str(self)!r}",)


_MARK = "is_loader_worker"


def _is_worker_importing_main() -> bool:
    """Return whether this process is a loader's worker that still imports the main module.

    If a loader is iterated then, Python raises an error, and each worker prints it.
    """
    process: Any = multiprocessing.current_process()
    return bool(getattr(process, "_inheriting", False) and process._config.get(_MARK))


def _with_shared_samples(
    args: tuple[Any, ...], replacements: Sequence[Replacement]
) -> tuple[Any, ...]:
    """Return a worker's arguments with a dataset that is a container replaced by shared samples."""
    shared = {id(item.container): item.shared for item in replacements if item.holder is None}
    return tuple(shared.get(id(arg), arg) for arg in args) if shared else args


def _is_large(arg: Any) -> bool:
    """Return whether an argument is sent in the payload, which all workers share."""
    return not isinstance(arg, (bool, int, float, str, type(None)))


_EPOCH = struct.Struct("<Q")


class DoneEvent:
    """An event in shared memory that, unlike multiprocessing's, has no lock.

    A process that is killed while it holds a lock would leave it locked forever.
    """

    def __init__(self) -> None:
        self.memory = ArenaMemory.create(16)

    def set(self) -> None:
        self.memory.map[0] = 1

    def is_set(self) -> bool:
        return self.memory.map[0] == 1

    def skip(self, epoch: int) -> None:
        """Have workers skip the prefetched tasks of an epoch."""
        _EPOCH.pack_into(self.memory.map, 8, epoch)

    def skips(self, epoch: int) -> bool:
        """Return whether the prefetched tasks of an epoch are to be skipped."""
        return epoch == int(_EPOCH.unpack_from(self.memory.map, 8)[0])


class LoaderWorkerEnds(NamedTuple):
    """A worker's ends of its link, and what it shares with the loader's process."""

    tasks: Any
    """The connection that tasks are received from."""
    results: Any
    """The connection that results are sent to."""
    memory: ArenaMemory
    """The memory that the worker writes batches to."""
    done: DoneEvent
    owner: End
    """The reading end of a pipe that is closed when the loader's process exits."""
    links: list[Link]
    """Links whose loader's ends a forked worker inherits and must close."""

    def __reduce__(self) -> tuple[Any, ...]:
        return LoaderWorkerEnds, (self.tasks, self.results, self.memory, self.done, self.owner, [])

    def close_loader_ends(self) -> None:
        """Close inherited loader's ends in a worker, so that each side detects the other's exit."""
        for link in self.links:
            link.close_loader_ends()

    def close(self) -> None:
        """Close the worker's pipe ends in the loader's process, after the start."""
        self.tasks.close()
        self.results.close()


class Link:
    """The loader's end of the pipes and memory of one worker; torch uses it as a task queue."""

    def __init__(self) -> None:
        self._done: DoneEvent | None = None
        self.outbox: Outbox | None = None
        self.inbox: Inbox | None = None
        self.reader: Reader | None = None
        self.ends: LoaderWorkerEnds | None = None
        self.num_received = 0
        """The number of this worker's results that have been unpickled."""
        self.is_ready = False
        """Whether the worker has sent that it is ready."""
        self.has_finished = False
        """Whether the worker has sent that it exits normally."""

    def open(self, done: DoneEvent, owner: OwnerPipe, links: list[Link]) -> LoaderWorkerEnds:
        """Create the pipes and the memory; return the worker's ends.

        Args:
            done: The event that tells workers to exit.
            owner: The pipe by which the system kills workers when the loader's process exits.
            links: Links that exist so far, this one among them.
        """
        self._done = done
        memory = ArenaMemory.create()
        read, write = pipe()
        tasks, self.outbox = connection.Connection(read, writable=False), Outbox(write)
        read, write = pipe()
        results, self.inbox = connection.Connection(write, readable=False), Inbox(read)
        self.reader = Reader(memory)
        self.ends = LoaderWorkerEnds(tasks, results, memory, done, owner.reading_end, list(links))
        return self.ends

    def close_worker_ends(self) -> None:
        """Close the worker's ends in this process, after the start."""
        if self.ends is not None:
            self.ends.close()
            self.ends = None

    def put(self, task: Any) -> None:
        """Send a task, with the blocks and the results that the loader has released."""
        if self.outbox is None or self.inbox is None or self.reader is None:
            return
        self.outbox.send(pack((self.reader.take_released(), self.num_received, task), None)[0])
        if task is None and self._done is not None and self._done.is_set():
            # the last message to a worker whose results are not read any more: without a reader, a
            # worker that blocks in a write gets an error, and exits
            self.inbox.close()

    def cancel_join_thread(self) -> None:
        """No thread empties this queue."""

    def close(self) -> None:
        """Close the link after the worker's exit; batches that the script holds stay valid."""
        self.close_loader_ends()
        if self.reader is not None:
            self.reader.close()

    def close_loader_ends(self) -> None:
        """Close the loader's pipe ends."""
        if self.outbox is not None and self.inbox is not None:
            self.outbox.close()
            self.inbox.close()


class WorkerProcess:
    """The worker process that torch's iterator starts; after `start` it acts as that `Process`."""

    def __init__(
        self, transport: Transport, link: Link, ends: LoaderWorkerEnds, job: tuple[Any, ...]
    ) -> None:
        self._transport = transport
        self._link = link
        self._ends = ends
        self._job = job
        self._process: Any = None
        self.daemon = True

    def start(self) -> None:
        """Start the process, and close what only the child needs."""
        try:
            self._process = self._transport.start(self._link, self._ends, self._job)
        finally:
            self._link.close_worker_ends()
            self._job = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_process"], name)


class ResultQueue:
    """The queue of the results of all workers, in the loader's process."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._poll = select.poll()
        self._links: dict[int, tuple[Link, Any]] = {}
        self._ready: deque[tuple[Link | None, Any]] = deque()
        self._has_worker_died = False
        self._wake_read, self._wake_write = map(End, pipe())
        self._poll.register(self._wake_read.fileno(), select.POLLIN)

    def register(self, link: Link, process: Any) -> None:
        """Receive the results of a worker that has been started."""
        assert link.inbox is not None
        self._links[link.inbox.fileno()] = (link, process)
        self._poll.register(link.inbox.fileno(), select.POLLIN)

    def get(self, timeout: float | None = None) -> Any:
        """Return the next result; raise queue.Empty after `timeout` seconds or a worker's death."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            if self._has_worker_died:
                self._has_worker_died = False
                raise queue.Empty
            if not self._wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise queue.Empty
        link, message = self._ready.popleft()
        if link is None:
            return message
        begin = time.perf_counter()
        result = Result.decode(message)
        assert link.reader is not None
        leases = link.reader.lease(result.lent)
        data = memoryview(leases.pop()) if result.is_in_block else result.data
        try:
            value = unpack(data, leases)
        finally:
            link.num_received += 1
        self._statistics.add_result(result, time.perf_counter() - begin)
        return value

    def put(self, value: Any) -> None:
        """Queue a value, and wake a thread of this process that waits in `get`."""
        self._ready.append((None, value))
        os.write(self._wake_write.fileno(), b"\0")

    def cancel_join_thread(self) -> None:
        """No thread empties this queue."""

    def close(self) -> None:
        """Close the queue after the last epoch."""
        forget_opened_storages()
        self._wake_read.close()
        self._wake_write.close()

    def _wait(self, timeout: float | None) -> bool:
        """Receive results and send queued tasks; return False after `timeout` seconds."""
        full = [
            link.outbox.fileno()
            for link, _ in self._links.values()
            if link.outbox is not None and not link.outbox.flush()
        ]
        for descriptor in full:
            self._poll.register(descriptor, select.POLLOUT)
        try:
            events = self._poll.poll(None if timeout is None else timeout * 1000)
        finally:
            for descriptor in full:
                self._poll.unregister(descriptor)
        for descriptor, _ in events:
            if descriptor in self._links:
                self._receive_from(descriptor)
            elif descriptor not in full:
                os.read(self._wake_read.fileno(), 1)
        return bool(events)

    def _receive_from(self, descriptor: int) -> None:
        """Receive what a worker has sent, or note that its pipe is closed."""
        link, process = self._links[descriptor]
        assert link.inbox is not None
        for message in link.inbox.receive():
            if message == READY:
                link.is_ready = True
            elif message:
                self._ready.append((link, message))
            else:
                link.has_finished = True
        if link.inbox.is_at_end:
            self._poll.unregister(descriptor)
            del self._links[descriptor]
            if not link.has_finished:
                _wait_for_exit(process)
                self._has_worker_died = True


def _wait_for_exit(process: Any) -> None:
    """Wait up to a second for a process that has closed its pipes, as torch checks it next."""
    deadline = time.monotonic() + 1.0
    connection.wait([process.sentinel], 1.0)
    while time.monotonic() < deadline:
        try:
            # do not reap it: torch and its signal handler must be able to
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
        except ChildProcessError:  # a child of the fork server
            return
        time.sleep(0.001)
