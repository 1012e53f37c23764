"""The tasks of a pool that wait, and those that are on their way."""

from __future__ import annotations

import array
import fcntl
import os
import termios
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from cputrain.errors import ResourceError
from cputrain.ipc import ArenaFullError, End, Memory, Writer, pipe
from cputrain.pool.outcomes import terminated
from cputrain.pool.packets import LONGEST, STOP, with_ticket
from cputrain.pool.tasks import Bundle, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cputrain.ipc import Lent
    from cputrain.pool.packets import ResultPacket
    from cputrain.pool.tasks import Task
    from cputrain.pool.workers import Worker

AHEAD = 32
"""Tasks that may wait in the pipe, so that a worker finds its next one without us."""

AHEAD_BYTES = 64 << 20
"""Bytes of arguments beyond which no task waits but one for each worker."""

_LOST_AFTER = 0.25
"""Seconds after which a task that was taken, but by none of the workers, went with a dead one."""


class Dispatch:
    """Sends tasks, in order, and no more than a few ahead of the workers.

    Scripts submit in their threads, and the engine hears of results in its own. What is sent is
    pickled with the lock held, and pickling may call whatever a script has written: so whoever
    submits waits for no lock, but leaves it to who has it.
    """

    def __init__(self, processes: int, failed: Callable[[Task, BaseException], None]) -> None:
        self._processes = processes
        self._failed = failed
        """Told of a task that cannot be sent, with the lock held."""
        self.lock = threading.RLock()
        self.arguments = Memory.create()
        self.writer = Writer(self.arguments, threads=min(8, len(os.sched_getaffinity(0))))
        read, write = pipe(os.O_DIRECT, of="a pool")
        self.pipe, self._write = End(read), End(write)
        os.set_blocking(write, False)
        with suppress(OSError):  # more than this user may have: then fewer tasks wait in it
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, (AHEAD + processes) * LONGEST)
        self._waiting: deque[Task] = deque()
        self.sent: dict[int, Task] = {}
        """On their way, by their tickets."""
        self._bytes = 0
        self._prepared_bytes = 0
        """Of tasks that wait and have been packed already."""
        self._counting = threading.Lock()
        """Held for the moment in which that is changed."""
        self.timed = 0
        """How many of them may take only so long."""
        self.bundles = 0
        """How many of them are bundles."""
        self._ticket = 0
        self._closed = False
        self._suspects: set[int] = set()
        self.look_again_at: float | None = None
        """When it is known whether a task was lost."""
        self._doubtful: dict[int, list[Lent]] = {}
        """Blocks of tasks that were sent again, though a worker may have them after all."""

    # -- going out

    def add(self, tasks: list[Task]) -> bool:
        """Tasks to be done after all others; false if somebody must be told to send them."""
        self._waiting.extend(tasks)
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.send(packs=False)
        finally:
            self.lock.release()

    def again(self, tasks: list[Task]) -> None:
        """Tasks to be done before all others, as they have been on their way already."""
        with self.lock:
            for task in tasks:
                task.unpack(self.writer)
            self._waiting.extendleft(reversed(tasks))

    def prepare(self, task: Task, *, now: bool) -> bool:
        """Pack what may change of a task before there is room for it.

        False if memory for that is used up, unless it must be `now`. As many as multiprocessing
        would pack at once always are: one for each worker, and the next one.
        """
        enough = len(self.sent) + len(self._waiting) > self._processes + 1
        if not now and enough and self._prepared_bytes >= AHEAD_BYTES:
            return False
        try:
            task.prepare(self.writer)
        except ArenaFullError:
            if not now:
                return False
            task.prepare_outside()
        except Exception as error:  # whatever cannot be pickled: told when its turn comes
            task.failure = error
        if task.prepared_bytes:
            with self._counting:
                self._prepared_bytes += task.prepared_bytes
            task.call.weighs(sum(one.size for one in task.lent))
        return True

    def _waits_no_more(self, task: Task) -> None:
        if task.prepared_bytes:
            with self._counting:
                self._prepared_bytes -= task.prepared_bytes
                task.prepared_bytes = 0

    def send(self, *, packs: bool = True) -> bool:
        """Put waiting tasks into the pipe; false if one must be packed first, and may not be.

        To pack calls whatever a script has written, so the engine's thread does it: it is not to
        be interrupted.
        """
        with self.lock:
            while self._waiting and not self._closed and self._has_room():
                if not (packs or self._waiting[0].is_prepared or self._waiting[0].is_ready):
                    return False
                task = self._next()
                try:
                    if not self._send(task):
                        return True  # when something has ended there will be room
                except BaseException:  # an interrupt of the thread that submits, say
                    self.take_out(task)
                    self._waiting.appendleft(task)
                    raise
        return True

    def _send(self, task: Task) -> bool:
        """False if it must wait, and waits."""
        if task.call.over:
            for one in task.each():
                self._failed(one, terminated())
            return True
        packet = self._packet_of(task)
        if packet is None:
            return not (self._waiting and self._waiting[0] is task)
        self._ticket += 1
        task.ticket = self._ticket
        self.sent[task.ticket] = task
        self._count(task, 1)
        if task.is_prepared:  # what others hold is known to be little
            for one in task.each():
                self._waits_no_more(one)
        try:
            os.write(self._write.fileno(), with_ticket(packet, self._ticket))
        except BlockingIOError:
            self.take_out(task)
            self._waiting.appendleft(task)
            return False
        return True

    def _has_room(self) -> bool:
        ahead = AHEAD if self._bytes < AHEAD_BYTES else self._processes
        return len(self.sent) < self._processes + ahead

    def _next(self) -> Task:
        """The next task, or a bundle of the next ones."""
        waiting = self._waiting
        task = waiting.popleft()
        call, function, is_prepared = task.call, task.function, task.is_prepared
        most = call.bundle(len(waiting) + 1, self._processes)
        if most == 1 or isinstance(task, Bundle):
            return task
        tasks = [task]
        while waiting and len(tasks) < most:
            following = waiting[0]
            if (
                following.call is not call
                or following.function is not function
                or following.is_prepared is not is_prepared
                or type(following) is Bundle
            ):
                break
            tasks.append(waiting.popleft())
        return Bundle(tasks) if len(tasks) > 1 else task

    def _packet_of(self, task: Task) -> bytearray | None:
        """Nothing if it must wait, or cannot be sent."""
        try:
            return task.pack(self.writer)
        except ArenaFullError:
            if self.sent:
                self._waiting.appendleft(task)
                return None
            error: Exception = ResourceError(
                task.named(),
                "must have arguments that fit into shared memory",
                found=f"no room in {self.arguments.size >> 20} MiB",
                do="Give it smaller pieces, or raise the limit on addresses: ulimit -v.",
            )
        except Exception as reason:  # whatever cannot be pickled: the caller is told
            error = reason
        if isinstance(task, Bundle):
            task.release(self.writer)
            task.call.may_bundle = False
            self.again(task.each())
        else:
            self._failed(task, error)
        return None

    def _count(self, task: Task, sign: int) -> None:
        self._bytes += sign * task.bytes
        self.timed += sign * (task.call.timeout is not None)
        self.bundles += sign * isinstance(task, Bundle)

    # -- coming back

    def take_out(self, task: Task) -> None:
        """It is on its way no more."""
        with self.lock:
            if self.sent.pop(task.ticket, None) is not None:
                self._count(task, -1)

    def settle(self, worker: Worker, packet: ResultPacket) -> Task | None:
        """Book what a worker tells; the task it is about, unless that has been given up."""
        with self.lock:
            task = self.sent.get(packet.ticket)
            self.writer.give_back(tokens_of(self._doubtful.pop(packet.ticket, [])))
            if task is not None:
                self.take_out(task)
                done = len(task.each())
                task.call.took(packet.took, done)
                task.call.weighs(sum(one.size for one in packet.result.lent) // done)
                if packet.kept:
                    lent = {one.token: one for one in task.all_lent()}
                    self.writer.keep([lent[token] for token in set(packet.kept)])
                    worker.kept.update(packet.kept)
                if isinstance(task, Bundle):
                    task.release(self.writer)
            ended = worker.kept.intersection(packet.ended)  # what it was set up with is not in it
            self.writer.give_back(list(ended))
            worker.kept -= ended
            return task

    def end(self, tasks: list[Task]) -> None:
        """Those of one call that will not be done again."""
        with self.lock:
            for task in tasks:
                if task.prepared_bytes:
                    self._waits_no_more(task)
                task.release(self.writer)
            tasks[0].call.ended(len(tasks), self.writer)

    def discard(self, task: Task) -> None:
        """One that was prepared, and will not be submitted."""
        self._waits_no_more(task)
        task.release(self.writer)

    def clear(self) -> list[Task]:
        """All of them; none is left."""
        with self.lock:
            tasks = [*self.sent.values(), *self._waiting]
            for task in list(self.sent.values()):
                self.take_out(task)
            self._waiting.clear()
        return [one for task in tasks for one in task.each()]

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is on its way."""
        return not self.sent and not self._waiting

    @property
    def has_waiting(self) -> bool:
        """Whether there is more than the pipe may hold."""
        return bool(self._waiting)

    # -- lost

    def look_for_lost(self, workers: Iterable[Worker]) -> None:
        """A worker has died: perhaps after it had taken a task, and before it could say so."""
        self._suspects = self._taken_by_none(workers)
        self.look_again_at = time.monotonic() + _LOST_AFTER if self._suspects else None

    def recover_lost(self, workers: Iterable[Worker]) -> None:
        """What nobody has begun by now will be sent again."""
        with self.lock:
            lost = self._suspects & self._taken_by_none(workers)
            self.look_again_at = None
            for task in [self.sent[ticket] for ticket in sorted(lost, reverse=True)]:
                self.take_out(task)
                # should a worker have it after all, its arguments must stay as they are
                self._doubtful[task.ticket] = task.all_lent()
                self.writer.keep(task.all_lent())
                self._waiting.appendleft(task)

    def _taken_by_none(self, workers: Iterable[Worker]) -> set[int]:
        """Tasks that are out of the pipe, but that no worker has begun."""
        with self.lock:
            waiting = array.array("i", [0])
            fcntl.ioctl(self.pipe.fileno(), termios.FIONREAD, waiting)
            in_pipe = waiting[0]
            taken = set()
            for ticket, task in reversed(self.sent.items()):
                assert task.packet is not None
                if in_pipe > 0:
                    in_pipe -= len(task.packet)
                else:
                    taken.add(ticket)
            return taken - {one.slot.read().ticket for one in workers}

    # -- the end

    def stop(self, workers: int) -> None:
        """Have so many workers end when they have done all that is in the pipe."""
        with suppress(BlockingIOError):  # who finds none finds the pipe's end
            for _ in range(workers):
                os.write(self._write.fileno(), STOP)

    def close_write(self) -> None:
        """Nothing more is sent."""
        with self.lock:
            self._closed = True
            self._write.close()

    def close_in_child(self) -> None:
        """In a process forked off the pool's, where another thread's lock is nobody's."""
        self._closed = True
        self._write.close()

    def close(self) -> None:
        """Let go of the pipe and the memory."""
        self._write.close()
        self.pipe.close()
        self.arguments.close_descriptor()
