"""What torch's loader engine calls a multiprocessing context: queues, an event and processes.

torch decides which batch is made when, by whom, with which seed, and what happens when something
fails; it does so here as everywhere. Only the ways between the processes are ours, and so is how
the processes are started.
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

from cputrain.data.payload import Payload
from cputrain.data.results import Result
from cputrain.data.sample_sharing import collections_paused
from cputrain.data.worker import READY, serve
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
    """Stands for the multiprocessing context of one iterator."""

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
        self.results = Results(statistics)
        self.done = DoneEvent()
        self.owner = OwnerPipe(of="a DataLoader")
        self._given_results = False
        self._payload: Payload | None = None
        self._first: tuple[Any, ...] | None = None
        self._links: list[Link] = []
        self._started: list[tuple[Link, Any]] = []
        """Links and their processes."""
        if context.get_start_method() != "fork" and _is_worker_importing_main():
            os._exit(0)  # the loader's process sees that this worker was never ready, and says why

    def Queue(self) -> Any:  # noqa: N802  (so torch's engine calls it)
        """The first is the queue of results, the others those of each worker's tasks."""
        if not self._given_results:
            self._given_results = True
            return self.results
        self._links.append(Link())
        return self._links[-1]

    def Event(self) -> DoneEvent:  # noqa: N802
        """Tells workers that no more is wanted."""
        return self.done

    def Process(self, target: Callable[..., None], args: tuple[Any, ...]) -> Any:  # noqa: N802
        """A worker, as torch wants it, at our end of the pipes."""
        link = self._links[-1]
        ours = {id(link): "tasks", id(self.results): "results", id(self.done): "done"}
        roles = {place: ours[id(one)] for place, one in enumerate(args) if id(one) in ours}
        # the last such place, as a dataset may be its own collate_fn
        roles[max(i for i, one in enumerate(args) if one is self._collate)] = "collate"
        # what is replaced by an end of ours does not travel
        kept = tuple(
            None if roles.get(place, "collate") != "collate" else one
            for place, one in enumerate(args)
        )
        return Worker(
            self, link, link.open(self.done, self.owner, self._links), (target, kept, roles)
        )

    def start(self, link: Link, ends: WorkerEnds, job: tuple[Any, ...]) -> Any:
        """Start the process of a worker, and hear it."""
        target, args, roles = job
        first = self._first is None
        is_forked = self._is_forked
        if not is_forked:
            args = _with_shared_samples(args, self._replacements)
        if first and not is_forked:
            self._payload = Payload.reserve(self._replacements)
        if first:
            self._first = args
        if self._payload is not None:
            own = tuple(
                None if _is_large(one) and one is of_first else one
                for one, of_first in zip(args, self._first or (), strict=True)
            )
            process = self._begin((ends, (), target, own, roles, self._payload))
            if not first or self._payload.fill(
                {i: one for i, one in enumerate(args) if _is_large(one)}
            ):
                assert link.outbox is not None
                link.outbox.send(self._payload.notice())
                self.results.listen(link, process)
                self._started.append((link, process))
                return process
            process.kill()
            process.join()
            self._payload.close()
            self._payload = None
        replacements = self._replacements if is_forked else ()
        process = self._begin((ends, replacements, target, args, roles, None))
        self.results.listen(link, process)
        self._started.append((link, process))
        return process

    def started(self) -> None:
        """All workers run: what only their start needed is let go."""
        self.done.memory.close_descriptor()
        if self._payload is not None:
            self._payload.close()

    def has_unguarded_main(self) -> bool:
        """Whether a worker ended well while it imported the main module."""
        return self._context.get_start_method() != "fork" and any(
            not link.is_ready and process.exitcode == 0 for link, process in self._started
        )

    def _begin(self, args: tuple[Any, ...]) -> Any:
        method = self._context.get_start_method()
        # what these start is for the whole program: it must not inherit a blocked signal
        if method != "fork":
            resource_tracker.ensure_running()
        if method == "forkserver":
            forkserver.ensure_running()
        # a forked copy of the script must not be interrupted before it has become a worker. Ctrl-C
        # ends a fork server that is starting, too, and is raised in the place of that error
        with deferred_signals(), interrupt_blocked() as takes_interrupts:
            process = self._context.Process(target=serve, args=(takes_interrupts, *args))
            process._name = _WorkerName(process._name)
            process.daemon = True
            try:
                with starting_workers(self.done.is_set), collections_paused(self._replacements):
                    process.start()
            except OSError as error:
                raise ResourceError.of(error, "a DataLoader's worker", "was not started") from error
        return process


class _WorkerName(str):
    """The name of a process; read in a process that starts, it marks that as a loader's worker.

    It is read before the main module is imported. Nothing of this package may be imported then, as
    the script may have settings to make first.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        mark = f"__import__('multiprocessing').current_process()._config.update({_MARK}=True)"
        return eval, (f"{mark} or {str(self)!r}",)


_MARK = "is_loader_worker"


def _is_worker_importing_main() -> bool:
    """Whether this process is to be a loader's worker, and a loader begins as it imports main.

    Python would raise an error, and each worker would print it.
    """
    process: Any = multiprocessing.current_process()
    return bool(getattr(process, "_inheriting", False) and process._config.get(_MARK))


def _with_shared_samples(
    args: tuple[Any, ...], replacements: Sequence[Replacement]
) -> tuple[Any, ...]:
    """Return the arguments of a worker with shared samples in the place of a list of them."""
    lists = {id(one.container): one.shared for one in replacements if one.holder is None}
    return tuple(lists.get(id(arg), arg) for arg in args) if lists else args


def _is_large(arg: Any) -> bool:
    return not isinstance(arg, (bool, int, float, str, type(None)))


_EPOCH = struct.Struct("<Q")


class DoneEvent:
    """A word of shared memory. An event of multiprocessing hangs if its holder is killed."""

    def __init__(self) -> None:
        self.memory = ArenaMemory.create(16)

    def set(self) -> None:
        self.memory.map[0] = 1

    def is_set(self) -> bool:
        return self.memory.map[0] == 1

    def skip(self, epoch: int) -> None:
        """Tasks that were sent ahead for this epoch are not wanted."""
        _EPOCH.pack_into(self.memory.map, 8, epoch)

    def skips(self, epoch: int) -> bool:
        return epoch == int(_EPOCH.unpack_from(self.memory.map, 8)[0])


class WorkerEnds(NamedTuple):
    """What a worker holds of its link."""

    take: Any
    send: Any
    memory: ArenaMemory
    done: DoneEvent
    owner: End
    """The reading end of a pipe that ends with the loader's process."""
    others: list[Link]
    """Whose ends at the loader a forked worker has inherited, and must not keep open."""

    def __reduce__(self) -> tuple[Any, ...]:
        return WorkerEnds, (self.take, self.send, self.memory, self.done, self.owner, [])

    def close_others(self) -> None:
        """In the worker: so that both sides notice when the other one ends."""
        for link in self.others:
            link.close_ends()

    def close(self) -> None:
        """In the loader's process, after the start."""
        self.take.close()
        self.send.close()


class Link:
    """One worker: its pipes, and the memory it writes to; to torch's engine, a queue of tasks."""

    def __init__(self) -> None:
        self._done: DoneEvent | None = None
        self.outbox: Outbox | None = None
        self.inbox: Inbox | None = None
        self.reader: Reader | None = None
        self.ends: WorkerEnds | None = None
        self.num_taken = 0
        """Results of this worker that have been taken over."""
        self.is_ready = False
        """Whether the worker has begun to take tasks."""
        self.ended_well = False

    def open(self, done: DoneEvent, owner: OwnerPipe, others: list[Link]) -> WorkerEnds:
        """Make both pipes and the memory; what the worker needs of them."""
        self._done = done
        memory = ArenaMemory.create()
        read, write = pipe()
        take, self.outbox = connection.Connection(read, writable=False), Outbox(write)
        read, write = pipe()
        send, self.inbox = connection.Connection(write, readable=False), Inbox(read)
        self.reader = Reader(memory)
        self.ends = WorkerEnds(take, send, memory, done, owner.reading_end, list(others))
        return self.ends

    def close_worker_ends(self) -> None:
        """After the start: the worker has its own."""
        if self.ends is not None:
            self.ends.close()
            self.ends = None

    def put(self, task: Any) -> None:
        """Send a task, and what the loader holds no more of those before it."""
        if self.outbox is None or self.inbox is None or self.reader is None:
            return
        self.outbox.send(pack((self.reader.take_released(), self.num_taken, task), None)[0])
        if task is None and self._done is not None and self._done.is_set():
            # the last word, and nobody listens: a worker that is waiting to be read must not wait
            self.inbox.close()

    def cancel_join_thread(self) -> None:
        """No thread empties this queue."""

    def close(self) -> None:
        """The worker has ended: keep nothing but what the script holds."""
        self.close_ends()
        if self.reader is not None:
            self.reader.close()

    def close_ends(self) -> None:
        """The loader's ends."""
        if self.outbox is not None and self.inbox is not None:
            self.outbox.close()
            self.inbox.close()


class Worker:
    """A process, started so that only the child keeps what only the child needs."""

    def __init__(
        self, transport: Transport, link: Link, ends: WorkerEnds, job: tuple[Any, ...]
    ) -> None:
        self._transport = transport
        self._link = link
        self._ends = ends
        self._job = job
        self._process: Any = None
        self.daemon = True

    def start(self) -> None:
        try:
            self._process = self._transport.start(self._link, self._ends, self._job)
        finally:
            self._link.close_worker_ends()
            self._job = ()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_process"], name)


class Results:
    """The queue of every worker's results, at the loader's end."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        self._poll = select.poll()
        self._links: dict[int, tuple[Link, Any]] = {}
        self._ready: deque[tuple[Link | None, Any]] = deque()
        self._died = False
        self._wake_read, self._wake_write = map(End, pipe())
        self._poll.register(self._wake_read.fileno(), select.POLLIN)

    def listen(self, link: Link, process: Any) -> None:
        """Hear a worker that has been started."""
        assert link.inbox is not None
        self._links[link.inbox.fileno()] = (link, process)
        self._poll.register(link.inbox.fileno(), select.POLLIN)

    def get(self, timeout: float | None = None) -> Any:
        """The next result of any worker; queue.Empty if none comes in time, or if a worker died."""
        end = None if timeout is None else time.monotonic() + timeout
        while not self._ready:
            if self._died:
                self._died = False
                raise queue.Empty
            if not self._wait(None if end is None else max(0.0, end - time.monotonic())):
                raise queue.Empty
        link, message = self._ready.popleft()
        if link is None:
            return message
        begin = time.perf_counter()
        result = Result.decode(message)
        assert link.reader is not None
        leases = link.reader.lease(result.lent)
        data = memoryview(leases.pop()) if result.in_block else result.data
        try:
            thing = unpack(data, leases)
        finally:
            link.num_taken += 1
        self._statistics.count(result, time.perf_counter() - begin)
        return thing

    def put(self, thing: Any) -> None:
        """Wakes a thread of this process that waits in get."""
        self._ready.append((None, thing))
        os.write(self._wake_write.fileno(), b"\0")

    def cancel_join_thread(self) -> None:
        """No thread empties this queue."""

    def close(self) -> None:
        forget_opened_storages()
        self._wake_read.close()
        self._wake_write.close()

    def _wait(self, timeout: float | None) -> bool:
        full = [
            link.outbox.fileno()
            for link, _ in self._links.values()
            if link.outbox is not None and not link.outbox.flush()
        ]
        for end in full:
            self._poll.register(end, select.POLLOUT)
        try:
            events = self._poll.poll(None if timeout is None else timeout * 1000)
        finally:
            for end in full:
                self._poll.unregister(end)
        for end, _ in events:
            if end in self._links:
                self._hear(end)
            elif end not in full:
                os.read(self._wake_read.fileno(), 1)
        return bool(events)

    def _hear(self, end: int) -> None:
        link, process = self._links[end]
        assert link.inbox is not None
        for message in link.inbox.receive():
            if message == READY:
                link.is_ready = True
            elif message:
                self._ready.append((link, message))
            else:
                link.ended_well = True
        if link.inbox.is_at_end:
            self._poll.unregister(end)
            del self._links[end]
            if not link.ended_well:
                _wait_for_end(process)
                self._died = True


def _wait_for_end(process: Any) -> None:
    """A process lets go of its pipes before it can be seen to have ended, as torch looks next."""
    end = time.monotonic() + 1.0
    connection.wait([process.sentinel], 1.0)
    while time.monotonic() < end:
        try:
            # torch is to find it by itself, and so is its handler of signals
            if os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
        except ChildProcessError:  # a child of the fork server
            return
        time.sleep(0.001)
