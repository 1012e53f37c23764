"""The thread behind a pool: tasks go out, results come in, workers that end are replaced.

Nothing here waits for a worker, and no lock is shared with one. All workers read one pipe of
packets; each has a pipe of its own for results, so one that is killed cuts off nobody but itself.
"""

from __future__ import annotations

import array
import fcntl
import os
import pickle
import select
import termios
import threading
import time
import weakref
from collections import deque
from multiprocessing.pool import RemoteTraceback
from typing import TYPE_CHECKING, Any

from cputrain.errors import (
    CputrainError,
    InternalError,
    ResourceError,
    TaskError,
    TaskLost,
    TaskTimeout,
    WorkerDied,
)
from cputrain.pool.feed import Feed
from cputrain.pool.packets import LONGEST, STOP, Part, ResultPacket, Status, with_ticket
from cputrain.pool.seeds import seed_from
from cputrain.pool.slots import Doing, Slot
from cputrain.pool.tasks import Bundle
from cputrain.pool.template import Shared, Template
from cputrain.pool.worker import Raised, Setup
from cputrain.pool.workers import Worker
from cputrain.shared import ArenaFullError, End, Memory, Writer, pack, starting_workers, unpack

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.pool.tasks import Call, Task

AHEAD = 32
"""Tasks that may wait in the pipe, so that a worker finds its next one without us."""

AHEAD_BYTES = 64 << 20
"""Bytes of arguments beyond which no task waits but one for each worker."""

_LOST_AFTER = 0.25
"""Seconds after which a task that was taken, but by none of the workers, went with a dead one."""

_START_ATTEMPTS = 3
"""Workers in a row that may end before they are ready."""

_PATIENCE = 0.02
"""Seconds that an item of a bundle may take before the others are given to somebody else."""

_LONG = 3600.0
"""Seconds; the system's clock for waiting takes no more than some weeks."""

_GRACE = 1.0
"""Seconds between the signal to end and the one that ends."""


class Engine:
    """Runs tasks on workers, until it is closed."""

    _all: weakref.WeakSet[Engine] = weakref.WeakSet()

    def __init__(
        self,
        processes: int,
        process: Callable[..., Any],
        setup: Setup,
        starting: Callable[[], Any],
    ) -> None:
        self.processes = processes
        self.workers: list[Worker] = []
        self._leaving: list[Worker] = []
        self._process = process
        self._setup = setup
        self._starting = starting
        self.calls: dict[int, Any] = _Calls(self)
        """Results that are not complete, by the number of their call."""
        self._lock = threading.RLock()
        self._waiting: deque[Task] = deque()
        self._sent: dict[int, Task] = {}
        self._sent_bytes = 0
        self._timed = 0
        """Tasks on their way that may take only so long."""
        self._bundles = 0
        """Bundles on their way."""
        self._ticket = 0
        self._started = 0
        self._suspects: tuple[float, set[int]] | None = None
        self._doubtful: list[Any] = []
        self._failed_starts = 0
        self._closing = False
        self._terminated = False
        self.broken: CputrainError | None = None
        """Why no worker can be started."""
        self._unheard: deque[Callable[[], None]] = deque()
        self._callbacks = _Callbacks()
        self._template: Template | None = None
        self._owner = os.getpid()
        self._open()

    def _open(self) -> None:
        self._arguments = Memory.create()
        self._writer = Writer(self._arguments)
        self._slots = Slot.room_for(2 * self.processes + 8)
        self._free_slots = list(range(2 * self.processes + 8))
        try:
            read, write = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
            life_read, life = os.pipe2(os.O_CLOEXEC)
            wake_read, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ResourceError.of(error, "a pool", "got no pipe") from error
        self._tasks, self._tasks_write = End(read), End(write)
        self._life, self._life_read = End(life), End(life_read)
        self._wake_read, self._wake = End(wake_read), End(wake)
        os.set_blocking(write, False)
        try:
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, (AHEAD + self.processes) * LONGEST)
        except OSError:  # more than this user may have: then fewer tasks wait in it
            pass
        self._poll = select.poll()
        self._poll.register(wake_read, select.POLLIN)
        self._ears: dict[int, Worker] = {}
        self._sentinels: dict[int, Worker] = {}
        Engine._all.add(self)

    # -- what a pool asks for

    def start(self) -> None:
        """Start the workers, and the thread."""
        if not self._setup.forked and self._setup.initializer is not None:
            self._pack_setup()
        try:
            with self._starting():
                if self._setup.forked and Template.can_run():
                    self._make_template()
                for _ in range(self.processes):
                    self._start_worker()
            for worker in self.workers:
                self._hear(worker)
        except BaseException:
            for worker in self.workers:
                worker.process.terminate()
            for worker in self.workers:
                worker.process.join()
                worker.close()
            self._close_ends()
            raise
        self.thread = threading.Thread(target=self._run, name="cputrain pool", daemon=True)
        self.thread.start()

    def _pack_setup(self) -> None:
        """Have all workers read the same, instead of one after the other its own."""
        setup = self._setup
        try:
            data, lent = pack((setup.initializer, setup.initargs), self._writer, sharing=True)
        except Exception:  # what only a process's start can share, as locks, says so itself
            return
        lent.append(self._writer.lend(memoryview(data)))
        packed = Part(b"", lent)
        self._setup = setup._replace(initializer=None, initargs=(), packed=packed)

    def submit(self, call: Call, tasks: list[Task], *, complete: bool) -> None:
        """Have tasks of a call done, in this order; `complete` if no more of it follow."""
        with self._lock:
            call.begun(len(tasks))
            call.complete = complete
            if self.broken is None and not self._terminated:
                self._waiting.extend(tasks)
                self._send()
                return
        error = self.broken or _terminated()
        for task in tasks:
            self._tell(task, False, error)

    def do(self, action: Callable[[], None]) -> None:
        """Have something done by the thread; can be asked for anywhere, by a finalizer too."""
        self._unheard.append(action)
        self.wake()

    def wake(self) -> None:
        """Have the thread look at everything again."""
        try:
            os.write(self._wake.fileno(), b"\0")
        except (BlockingIOError, OSError):  # it has been woken already, or it has ended
            return

    def complete(self, call: Call) -> None:
        """No more tasks of this call follow."""
        with self._lock:
            call.complete = True
            call.ended(0, self._writer)

    def forget(self, call: Call) -> int:
        """Nobody waits for what is still to come of a call; how many tasks will not be done."""
        with self._lock:
            kept = [task for task in self._waiting if task.call is not call]
            dropped = sum(len(task.each()) for task in self._waiting if task.call is call)
            self._waiting = deque(kept)
            call.complete = True
            call.ended(dropped, self._writer)
        self.wake()
        return dropped

    def close(self) -> None:
        """Nothing more will be asked for."""
        self._closing = True
        self.wake()

    def join(self) -> None:
        """Wait until all has been done, asked for or not, and the workers have ended."""
        for result in list(self.calls.values()):
            if isinstance(result, Feed):
                result.lift()
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def terminate(self) -> None:
        """End everything now."""
        if os.getpid() != self._owner:
            return
        self._terminated = True
        self.wake()
        if threading.current_thread() is not self.thread:
            self.thread.join()

    def start_missing(self) -> None:
        """Start workers in the place of those that have ended."""
        with self._lock, self._starting():
            if self._template is None and self._setup.forked and Template.can_run():
                self._make_template()
            while len(self.workers) < self.processes:
                self._hear(self._start_worker())
        self.wake()

    # -- workers

    def _make_template(self) -> None:
        shared = Shared(self._tasks, self._life_read, self._arguments, self._slots)
        with starting_workers(self._is_over):
            self._template = Template(self._process, shared, self._setup)
        self._poll.register(self._template.fileno(), select.POLLIN)

    def _start_worker(self) -> Worker:
        slot = Slot(self._slots, self._free_slots.pop())
        slot.end()
        worker = Worker(slot)
        self._started += 1
        seed = seed_from(self._setup.seed, self._started)
        try:
            if self._template is not None:
                worker.start_from(self._template, seed)
            else:
                shared = Shared(self._tasks, self._life_read, self._arguments, self._slots)
                setup = self._setup._replace(seed=seed)
                with starting_workers(self._is_over):
                    worker.start(self._process, shared, setup)
        except BaseException:
            self._free_slots.append(slot.number)
            worker.close()
            raise
        self.workers.append(worker)
        return worker

    def _is_over(self) -> bool:
        return not self.workers and not self._leaving

    def _hear(self, worker: Worker) -> None:
        if worker.inbox.fileno() not in self._ears:
            self._ears[worker.inbox.fileno()] = worker
            self._poll.register(worker.inbox.fileno(), select.POLLIN)
        if worker.is_started:
            self._sentinels[worker.sentinel] = worker
            self._poll.register(worker.sentinel, select.POLLIN)

    def _listen_to_template(self) -> None:
        """Workers have been started, or could not be; of their end, their own descriptors tell."""
        assert self._template is not None
        if not self._template.listen():
            # it has been killed: another one is made for the next worker, as well as now may be
            self._poll.unregister(self._template.fileno())
            self._template.close()
            self._template = None
        known = set(self._sentinels.values())
        for worker in list(self.workers):
            if worker.process.refused:
                self._refused(worker)
            elif worker not in known and worker.is_started:
                self._hear(worker)

    def _refused(self, worker: Worker) -> None:
        self._deafen(worker)
        with self._lock:
            self.workers.remove(worker)
            self._free_slots.append(worker.slot.number)
        worker.close()
        number = worker.process.refused
        error = OSError(number, os.strerror(number))
        if not self.workers:
            self._break(ResourceError.of(error, "a pool's worker", "was not started"))

    def _deafen(self, worker: Worker) -> None:
        for ears in (self._ears, self._sentinels):
            for end in [end for end, one in ears.items() if one is worker]:
                self._poll.unregister(end)
                del ears[end]

    def _ended(self, worker: Worker) -> None:
        """A worker's process has ended."""
        self._receive(worker)
        self._deafen(worker)
        doing = worker.slot.read()
        how = worker.join()
        with self._lock:
            for workers in (self.workers, self._leaving):
                if worker in workers:
                    workers.remove(worker)
            self._writer.give_back(list(worker.kept))
            self._free_slots.append(worker.slot.number)
            task = self._sent.get(doing.ticket)
        worker.close()
        if task is not None:
            self._died_with(task, worker, doing, how)
        elif not worker.leaving:
            self._look_for_lost()
        if not worker.ready and not worker.leaving:
            self._failed_starts += 1
            if self._failed_starts >= _START_ATTEMPTS:
                self._break(
                    WorkerDied(
                        "a pool's worker",
                        "ended before it was ready",
                        found=how,
                        do="What it printed tells why. Where processes are spawned, a script must "
                        'start its pool under `if __name__ == "__main__":`.',
                    )
                )

    def _died_with(self, task: Task, worker: Worker, doing: Doing, how: str) -> None:
        with self._lock:
            self._take_out(task)
        if worker.killed_for and worker.killed_for != doing.ticket:
            self._again([task])  # it had just begun when the worker was killed for another
            return
        if isinstance(task, Bundle):
            # those before it had ended, but nobody has been told how
            self._again(task.cut(doing.item + 1))
            with self._lock:
                task.release(self._writer)
        for one in task.each():
            one.attempts += 1
            if one.attempts <= one.call.retries:
                self._again([one])
            else:
                item = 0 if isinstance(task, Bundle) else doing.item
                self._finish(one, False, _fate(one, item, how, killed=bool(worker.killed_for)))

    def _again(self, tasks: list[Task]) -> None:
        with self._lock:
            self._waiting.extendleft(reversed(tasks))

    def _look_for_lost(self) -> None:
        """A worker has died: perhaps after it had taken a task, and before it could say so."""
        taken = self._taken_by_none()
        if taken:
            self._suspects = (time.monotonic() + _LOST_AFTER, taken)

    def _recover_lost(self) -> None:
        assert self._suspects is not None
        with self._lock:
            lost = self._suspects[1] & self._taken_by_none()
            self._suspects = None
            for task in [self._sent[ticket] for ticket in sorted(lost, reverse=True)]:
                self._take_out(task)
                # should a worker have it after all, its arguments must stay as they are
                self._doubtful.append(task.lent)
                task.lent, task.packet = [], None
                self._waiting.appendleft(task)

    def _taken_by_none(self) -> set[int]:
        """Tasks that are out of the pipe, but that no worker has begun."""
        with self._lock:
            waiting = array.array("i", [0])
            fcntl.ioctl(self._tasks.fileno(), termios.FIONREAD, waiting)
            in_pipe = waiting[0]
            taken = set()
            for ticket, task in reversed(self._sent.items()):
                assert task.packet is not None
                if in_pipe > 0:
                    in_pipe -= len(task.packet)
                else:
                    taken.add(ticket)
            return taken - {one.slot.read().ticket for one in (*self.workers, *self._leaving)}

    def _break(self, error: CputrainError) -> None:
        self.broken = error
        with self._lock:
            tasks = [*self._sent.values(), *self._waiting]
            for task in list(self._sent.values()):
                self._take_out(task)
            self._waiting.clear()
        for task in tasks:
            for one in task.each():
                self._finish(one, False, error)

    # -- tasks

    def _send(self) -> None:
        """Put waiting tasks into the pipe; with the lock held."""
        while self._waiting and self._has_room():
            task = self._next_task()
            try:
                packet = task.pack(self._writer)
            except ArenaFullError:
                if self._sent:
                    self._waiting.appendleft(task)
                    return  # when something has ended there will be room
                error = ResourceError(
                    task.named(),
                    "must have arguments that fit into shared memory",
                    found=f"no room in {self._arguments.size >> 20} MiB",
                    do="Give it smaller pieces, or raise the limit on addresses: ulimit -v.",
                )
                self._later(task, error)
                continue
            except Exception as error:  # whatever cannot be pickled: the caller is told
                if isinstance(task, Bundle):
                    task.call.may_bundle = False
                    self._again(task.tasks)
                else:
                    self._later(task, error)
                continue
            self._ticket += 1
            try:
                os.write(self._tasks_write.fileno(), with_ticket(packet, self._ticket))
            except BlockingIOError:
                self._waiting.appendleft(task)
                return  # when something has ended there will be room
            task.ticket = self._ticket
            self._sent[task.ticket] = task
            self._sent_bytes += task.bytes
            self._timed += task.call.timeout is not None
            self._bundles += isinstance(task, Bundle)

    def _next_task(self) -> Task:
        """The next task, or a bundle of the next ones."""
        task = self._waiting.popleft()
        most = task.call.bundle(len(self._waiting) + 1, self.processes)
        if most == 1 or isinstance(task, Bundle):
            return task
        tasks = [task]
        while self._waiting and len(tasks) < most and self._waiting[0].call is task.call:
            if isinstance(self._waiting[0], Bundle):
                break
            tasks.append(self._waiting.popleft())
        return Bundle(tasks) if len(tasks) > 1 else task

    def _has_room(self) -> bool:
        limit = self.processes + (AHEAD if self._sent_bytes < AHEAD_BYTES else self.processes)
        return len(self._sent) < limit

    def _later(self, task: Task, error: BaseException) -> None:
        self.do(lambda: self._finish(task, False, error))

    def _take_out(self, task: Task) -> None:
        if self._sent.pop(task.ticket, None) is not None:
            self._sent_bytes -= task.bytes
            self._timed -= task.call.timeout is not None
            self._bundles -= isinstance(task, Bundle)

    def _finish(self, task: Task, success: bool, value: Any) -> None:
        with self._lock:
            task.release(self._writer)
            task.call.ended(1, self._writer)
        self._tell(task, success, value)

    def _tell(self, task: Task, success: bool, value: Any) -> None:
        result, index = task.call.result, task.index
        if self._terminated:
            result._callback = result._error_callback = None
        if result._callback or result._error_callback:
            self._callbacks.put(lambda: result._set(index, (success, value)))
        else:
            result._set(index, (success, value))

    # -- results

    def _receive(self, worker: Worker) -> None:
        for message in worker.inbox.receive():
            self._take(worker, ResultPacket.decode(message))
        if worker.inbox.ended and worker.inbox.fileno() in self._ears:
            self._poll.unregister(worker.inbox.fileno())
            del self._ears[worker.inbox.fileno()]

    def _take(self, worker: Worker, packet: ResultPacket) -> None:
        if packet.status is Status.READY:
            worker.ready = True
            self._failed_starts = 0
            return
        if packet.status is Status.BYE:
            worker.leaving = True
            return
        leases = worker.reader.leases(packet.result.lent)
        if packet.status is Status.NOT_SET_UP:
            worker.leaving = True
            _, cause = _outcome(packet.status, packet.result.data, leases)
            self._break(_not_set_up(cause))
            return
        task = self._settle(worker, packet)
        if isinstance(task, Bundle) and packet.status is Status.DONE:
            self._finish_each(task, packet.result.data, leases)
        elif task is not None:
            success, value = _outcome(packet.status, packet.result.data, leases)
            del leases
            for one in task.each():
                self._finish(one, success, value)
            del value
        worker.give_back()

    def _settle(self, worker: Worker, packet: ResultPacket) -> Task | None:
        """Book what a worker tells; the task it is about, unless that has been given up."""
        with self._lock:
            task = self._sent.get(packet.ticket)
            if task is not None:
                self._take_out(task)
                task.call.took(packet.took, len(task.each()))
                if packet.result.lent:
                    size = sum(one.size for one in packet.result.lent)
                    task.call.heaviest = max(task.call.heaviest, size)
                if packet.kept:
                    self._keep(worker, task, packet)
                if isinstance(task, Bundle):
                    task.release(self._writer)
            if packet.ended:
                self._writer.give_back(packet.ended)
                worker.kept.difference_update(packet.ended)
            if packet.last:
                worker.leaving = True
                self.workers.remove(worker)
                self._leaving.append(worker)
        return task

    def _finish_each(self, bundle: Bundle, data: bytes | memoryview, leases: list[Any]) -> None:
        """Tell what came of each task of a bundle; those that were not begun are sent again."""
        outcomes = pickle.loads(data)
        self._again(bundle.cut(len(outcomes)))
        begin = 0
        for task, (status, own, count) in zip(bundle.tasks, outcomes, strict=False):
            buffers = leases[begin : begin + count]
            begin += count
            success, value = _outcome(status, own, buffers)
            del buffers
            self._finish(task, success, [value] if success else value)
            del value

    def _keep(self, worker: Worker, task: Task, packet: ResultPacket) -> None:
        kept = set(packet.kept)
        lent = {(one.offset, one.generation): one for one in task.lent}
        self._writer.keep([lent[token] for token in kept])
        worker.kept |= kept

    # -- the thread

    def _run(self) -> None:
        try:
            while not self._is_done():
                self._turn()
        except BaseException as error:
            self.broken = InternalError("a pool", "must not fail", found=_said(error))
            self.broken.__cause__ = error
            raise
        finally:
            self._end()

    def _turn(self) -> None:
        for end, _ in self._poll.poll(self._until_next()):
            if end == self._wake_read.fileno():
                os.read(end, 1 << 12)
            elif self._template is not None and end == self._template.fileno():
                self._listen_to_template()
            elif end in self._ears:
                self._receive(self._ears[end])
            elif end in self._sentinels:
                self._ended(self._sentinels[end])
        while self._unheard:
            self._unheard.popleft()()
        if self._suspects is not None and time.monotonic() >= self._suspects[0]:
            self._recover_lost()
        if self._timed:
            self._kill_overdue()
        if self._bundles:
            self._share_bundles()
        if self.broken is None and not self._terminated and (self.calls or not self._closing):
            self._replace()
        with self._lock:
            self._send()

    def _replace(self) -> None:
        try:
            if len(self.workers) < self.processes:
                self.start_missing()
        except OSError as error:
            if not self.workers:
                broken = ResourceError.of(error, "a pool's worker", "was not replaced")
                broken.__cause__ = error
                self._break(broken)

    def _until_next(self) -> float | None:
        """Milliseconds until something must be looked at."""
        times = []
        now = time.monotonic()
        if self._suspects is not None:
            times.append(self._suspects[0] - now)
        if self._bundles:
            times.append(_PATIENCE)
        if self._timed:
            with self._lock:
                limits = [task.call.timeout for task in self._sent.values()]
                times += [limit for limit in limits if limit is not None]
                for worker in self.workers:
                    doing = worker.slot.read()
                    task = self._sent.get(doing.ticket)
                    if task is not None and task.call.timeout is not None:
                        times.append(doing.since / 1e9 + task.call.timeout - now)
        return min(max(0.0, min(times)), _LONG) * 1e3 + 1 if times else None

    def _kill_overdue(self) -> None:
        now = time.monotonic_ns()
        for worker in self.workers:
            doing = worker.slot.read()
            with self._lock:
                task = self._sent.get(doing.ticket)
            if task is None or task.call.timeout is None or worker.killed_for:
                continue
            if now - doing.since > task.call.timeout * 1e9:
                worker.killed_for = doing.ticket
                worker.kill()

    def _share_bundles(self) -> None:
        """Take back what waits behind an item that takes long, while another worker has nothing.

        What is behind it may even be what it waits for.
        """
        now = time.monotonic_ns()
        doings = [worker.slot.read() for worker in self.workers]
        with self._lock:
            if self._waiting or all(doing.ticket for doing in doings):
                return
            for worker, doing in zip(self.workers, doings, strict=True):
                bundle = self._sent.get(doing.ticket)
                if not isinstance(bundle, Bundle) or doing.item + 1 >= len(bundle.tasks):
                    continue
                if now - doing.since < _PATIENCE * 1e9:
                    continue
                if bundle.revoked is None or bundle.revoked[1] != doing.item:
                    worker.slot.limit(doing.ticket, doing.item + 1)
                    bundle.revoked = now, doing.item
                elif now - bundle.revoked[0] > _PATIENCE * 1e9:
                    # it is still at the same item, so it has seen the limit when that ends
                    self._again(bundle.cut(doing.item + 1))

    def _is_done(self) -> bool:
        if self._terminated:
            return True
        return self._closing and not self.calls and not self._sent and not self._waiting

    def _end(self) -> None:
        workers = [*self.workers, *self._leaving]
        if not self._terminated and self.broken is None:
            for _ in self.workers:
                try:
                    os.write(self._tasks_write.fileno(), STOP)
                except BlockingIOError:
                    break
        self._tasks_write.close()
        self._wait_for(workers)
        with self._lock:
            self._terminated = True
        self._break(self.broken or _terminated())
        while self._unheard:
            self._unheard.popleft()()
        for result in list(self.calls.values()):
            if isinstance(result, Feed):
                result.stop(self.broken or _terminated())
        for worker in workers:
            worker.process.join(1.0)
            worker.close()
        self._callbacks.end()
        self._close_ends()

    def _wait_for(self, workers: list[Worker]) -> None:
        begin = time.monotonic()
        asked: list[Worker] = []
        while workers:
            if self._template is not None:
                self._template.listen()
            workers = [worker for worker in workers if not worker.has_ended()]
            if self._terminated or self.broken is not None:
                late = time.monotonic() > begin + _GRACE
                for worker in workers if late else set(workers).difference(asked):
                    if worker.is_started:
                        worker.process.kill() if late else worker.process.terminate()
                        asked.append(worker)
            if workers:
                self._listen_to_the_last(workers)

    def _listen_to_the_last(self, workers: list[Worker]) -> None:
        """What they still say is of no interest, but they wait until it has been taken."""
        waiting = select.poll()
        if self._template is not None and self._template.is_alive:
            waiting.register(self._template.fileno(), select.POLLIN)
        for worker in workers:
            if worker.is_started:
                waiting.register(worker.sentinel, select.POLLIN)
            if not worker.inbox.ended:
                waiting.register(worker.inbox.fileno(), select.POLLIN)
        waiting.poll(100)
        for worker in workers:
            worker.inbox.receive()

    def _close_ends(self) -> None:
        if self._template is not None:
            self._template.close()
        for end in (self._tasks, self._tasks_write, self._life, self._life_read):
            end.close()
        self._wake.close()
        self._wake_read.close()
        self._arguments.close_descriptor()
        self._slots.close_descriptor()

    def close_in_child(self) -> None:
        """In a process forked off the pool's: so that each side sees the other end."""
        if os.getpid() == self._owner:
            return
        if self._template is not None:
            self._template.close_in_child()
        self._tasks_write.close()
        self._life.close()
        for worker in (*self.workers, *self._leaving):
            worker.inbox.close()
            worker.outbox.close()


class _Calls(dict[int, Any]):
    """Tells the engine when there is none left: it may be waiting for that."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self._engine = weakref.ref(engine)

    def __delitem__(self, job: int) -> None:
        super().__delitem__(job)
        engine = self._engine()
        if not self and engine is not None:
            engine.wake()


class _Callbacks:
    """A thread for what scripts want to have called: it may take long, raise, or use the pool."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None] | None] = deque()
        self._more = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def put(self, action: Callable[[], None]) -> None:
        self._waiting.append(action)
        self._more.release()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="cputrain pool's callbacks", daemon=True
            )
            self._thread.start()

    def end(self) -> None:
        if self._thread is not None:
            self._waiting.append(None)
            self._more.release()

    def _run(self) -> None:
        while True:
            self._more.acquire()
            action = self._waiting.popleft()
            if action is None:
                return
            try:
                action()
            except BaseException as error:  # of a callback: nobody else can be told
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, None))
                )


def _close_all() -> None:
    for engine in list(Engine._all):
        engine.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


def _outcome(status: Status, data: Any, leases: list[Any]) -> tuple[bool, Any]:
    try:
        value = unpack(data if data else memoryview(leases.pop()), leases)
    except BaseException as error:  # whatever a result is made of: the caller is told
        return False, TaskError(
            "a task's result",
            "must be made of what this process can import",
            found=f"{type(error).__name__}: {error}",
        )
    if not isinstance(value, Raised) or status is Status.DONE:
        return True, value
    return False, _as_raised(value)


def _as_raised(raised: Raised) -> BaseException:
    why = "cannot be pickled"
    error: BaseException | None = None
    if raised.pickled:
        try:
            error = unpack(raised.pickled, ())
        except BaseException as reason:  # whatever the exception is made of: the caller is told
            why = f"cannot be made here ({type(reason).__name__}: {reason})"
        if error is not None and not isinstance(error, Exception):
            error, why = None, "would end this process"
    if error is None:
        error = TaskError(
            "a task",
            f"raised {raised.kind}, which {why}",
            found=raised.says or "no text",
        )
    error.__cause__ = RemoteTraceback(f'\n"""\n{raised.traceback}"""')
    return error


def _not_set_up(cause: BaseException) -> TaskLost:
    error = TaskLost(
        "the initializer of a pool",
        "must not raise",
        found=_said(cause),
        do="Its traceback is above.",
    )
    error.__cause__ = cause
    return error


def _fate(task: Task, item: int, how: str, *, killed: bool) -> TaskLost:
    tried = f" {task.attempts} times" * (task.attempts > 1)
    if killed:
        return TaskTimeout(
            task.named(item),
            f"must end within {task.call.timeout:g} s",
            found=f"it running longer{tried}, and killed its {how.partition(' was ')[0]}",
            do="Give it a longer timeout, or smaller pieces of work.",
        )
    return WorkerDied(task.named(item), f"lost its worker{tried}", found=how, do=_advice(how))


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _terminated() -> TaskLost:
    return TaskLost(
        "a task",
        "has no result",
        found="that its pool was terminated",
        do="Wait for the results first: close() and join(), or get() within the with block.",
    )


def _advice(how: str) -> str:
    if "SIGKILL" in how:
        return (
            "The kernel sends SIGKILL when memory is short: use fewer processes or smaller tasks; "
            "retries=1 runs such a task again."
        )
    if "SIGSEGV" in how or "SIGBUS" in how or "SIGABRT" in how:
        return (
            "Native code crashed: run the function in this process, under python -X faulthandler."
        )
    return "Let the function return or raise instead of ending its process."
