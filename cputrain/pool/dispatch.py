"""The dispatch queue: tasks that wait, and tasks sent to the workers' pipe."""

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
from cputrain.ipc import ArenaFullError, ArenaMemory, End, Writer, pipe
from cputrain.pool.outcomes import terminated_error
from cputrain.pool.packets import LONGEST, STOP, with_ticket
from cputrain.pool.tasks import Bundle, tokens_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cputrain.ipc import BlockRef
    from cputrain.pool.packets import ResultPacket
    from cputrain.pool.tasks import Task
    from cputrain.pool.workers import PoolWorker

AHEAD = 32
"""Tasks that may wait in the pipe, so that a worker reads its next task without a round trip."""

AHEAD_BYTES = 64 << 20
"""Bytes of arguments in flight beyond which only one task per worker waits in the pipe."""

_LOST_AFTER_S = 0.25
"""Seconds after which a task that was read, but begun by no live worker, counts as lost."""


class Dispatch:
    """A queue that sends tasks in order, and no more than a few ahead of the workers.

    User threads submit tasks, the engine's thread receives results. Tasks are pickled with the lock
    held, and pickling may call user code, such as `__reduce__`. So `enqueue` never blocks on the
    lock: if another thread holds it, that thread sends the task.
    """

    def __init__(
        self, num_workers: int, on_send_failure: Callable[[Task, BaseException], None]
    ) -> None:
        self._num_workers = num_workers
        self._on_send_failure = on_send_failure
        """Called with the lock held for a task that cannot be sent, and the error."""
        self.lock = threading.RLock()
        self.arguments = ArenaMemory.create()
        self.writer = Writer(self.arguments, threads=min(8, len(os.sched_getaffinity(0))))
        read, write = pipe(os.O_DIRECT, of="a pool")
        self.pipe, self._write = End(read), End(write)
        os.set_blocking(write, False)
        with suppress(OSError):  # above the user's limit on pipes: then fewer tasks wait in it
            fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, (AHEAD + num_workers) * LONGEST)
        self._waiting: deque[Task] = deque()
        self.sent: dict[int, Task] = {}
        """Tasks that have been sent and have no result yet, by ticket."""
        self._sent_bytes = 0
        self._prepared_bytes = 0
        """Bytes held by waiting tasks that have been packed already."""
        self._prepared_bytes_lock = threading.Lock()
        """Guards `_prepared_bytes`."""
        self.num_timed = 0
        """How many sent tasks have a timeout."""
        self.num_bundles = 0
        """How many sent tasks are bundles."""
        self._last_ticket = 0
        self._closed = False
        self._suspects: set[int] = set()
        self.recover_lost_at_s: float | None = None
        """Monotonic time at which suspected tasks that no worker has begun count as lost."""
        self._quarantined: dict[int, list[BlockRef]] = {}
        """Argument blocks, by ticket, of tasks sent again although a worker may still run them."""

    # -- sending

    def enqueue(self, tasks: list[Task]) -> bool:
        """Append tasks to the queue; return False if the engine's thread must send them."""
        self._waiting.extend(tasks)
        if not self.lock.acquire(blocking=False):
            return False
        try:
            return self.send(packs=False)
        finally:
            self.lock.release()

    def requeue(self, tasks: list[Task]) -> None:
        """Put tasks that have been sent before at the front of the queue."""
        with self.lock:
            for task in tasks:
                task.unpack(self.writer)
            self._waiting.extendleft(reversed(tasks))

    def prepare(self, task: Task, *, must_pack: bool) -> bool:
        """Pack the mutable arguments of a task before there is room to send it.

        Returns False if the memory for packed tasks is used up, unless `must_pack`. As many as
        multiprocessing would pack at once are always packed: one for each worker, and the next.
        """
        has_enough = len(self.sent) + len(self._waiting) > self._num_workers + 1
        if not must_pack and has_enough and self._prepared_bytes >= AHEAD_BYTES:
            return False
        try:
            task.prepare(self.writer)
        except ArenaFullError:
            if not must_pack:
                return False
            task.prepare_without_arena()
        except Exception as error:  # from user code while pickling: raised when the task is sent
            task.failure = error
        if task.prepared_bytes:
            with self._prepared_bytes_lock:
                self._prepared_bytes += task.prepared_bytes
            task.call.record_bytes(sum(block.size for block in task.blocks))
        return True

    def _uncount_prepared(self, task: Task) -> None:
        """Subtract a task that no longer waits from the bytes of prepared tasks."""
        if task.prepared_bytes:
            with self._prepared_bytes_lock:
                self._prepared_bytes -= task.prepared_bytes
                task.prepared_bytes = 0

    def send(self, *, packs: bool = True) -> bool:
        """Write waiting tasks to the pipe; return False if the next must be packed first.

        Packing calls user code, so only the engine's thread does it (`packs`), which
        KeyboardInterrupt does not reach.
        """
        with self.lock:
            while self._waiting and not self._closed and self._has_room():
                if not (packs or self._waiting[0].is_prepared or self._waiting[0].is_ready):
                    return False
                task = self._next_task()
                try:
                    if not self._send(task):
                        return True  # a result makes room, and the engine sends again
                except BaseException:  # an interrupt of the thread that submits, say
                    self.remove_sent(task)
                    self._waiting.appendleft(task)
                    raise
        return True

    def _send(self, task: Task) -> bool:
        """Send one task; return False if the task had to be put back into the queue."""
        if task.call.is_over:
            for member in task.members():
                self._on_send_failure(member, terminated_error())
            return True
        packet = self._pack_task(task)
        if packet is None:
            return not (self._waiting and self._waiting[0] is task)
        self._last_ticket += 1
        task.ticket = self._last_ticket
        self.sent[task.ticket] = task
        self._count_sent(task, 1)
        if task.is_prepared:  # tasks that are not prepared hold no packed arguments
            for member in task.members():
                self._uncount_prepared(member)
        try:
            os.write(self._write.fileno(), with_ticket(packet, self._last_ticket))
        except BlockingIOError:
            self.remove_sent(task)
            self._waiting.appendleft(task)
            return False
        return True

    def _has_room(self) -> bool:
        """Return whether another task may be sent ahead of the workers."""
        max_waiting = AHEAD if self._sent_bytes < AHEAD_BYTES else self._num_workers
        return len(self.sent) < self._num_workers + max_waiting

    def _next_task(self) -> Task:
        """Pop the next task, or a bundle of the next tasks if they are small."""
        waiting = self._waiting
        task = waiting.popleft()
        call, function, is_prepared = task.call, task.function, task.is_prepared
        max_tasks = call.bundle(len(waiting) + 1, self._num_workers)
        if max_tasks == 1 or isinstance(task, Bundle):
            return task
        tasks = [task]
        while waiting and len(tasks) < max_tasks:
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

    def _pack_task(self, task: Task) -> bytearray | None:
        """Return the task's packet, or None if the task must wait or cannot be sent."""
        try:
            return task.pack(self.writer)
        except ArenaFullError:
            if self.sent:
                self._waiting.appendleft(task)
                return None
            error: Exception = ResourceError(
                task.description(),
                "must have arguments that fit into shared memory",
                found=f"no room in {self.arguments.size >> 20} MiB",
                do="Give it smaller pieces, or raise the limit on addresses: ulimit -v.",
            )
        except Exception as packing_error:  # from user code while pickling: the caller gets it
            error = packing_error
        if isinstance(task, Bundle):
            task.release(self.writer)
            task.call.may_bundle = False
            self.requeue(task.members())
        else:
            self._on_send_failure(task, error)
        return None

    def _count_sent(self, task: Task, sign: int) -> None:
        """Add a task to the totals over sent tasks (`sign` 1), or subtract it (-1)."""
        self._sent_bytes += sign * task.bytes
        self.num_timed += sign * (task.call.timeout is not None)
        self.num_bundles += sign * isinstance(task, Bundle)

    # -- results

    def remove_sent(self, task: Task) -> None:
        """Remove a task from the sent tasks."""
        with self.lock:
            if self.sent.pop(task.ticket, None) is not None:
                self._count_sent(task, -1)

    def settle_result(self, worker: PoolWorker, packet: ResultPacket) -> Task | None:
        """Book a worker's result; return its task, or None if the task has been given up."""
        with self.lock:
            task = self.sent.get(packet.ticket)
            self.writer.release(tokens_of(self._quarantined.pop(packet.ticket, [])))
            if task is not None:
                self.remove_sent(task)
                num_tasks = len(task.members())
                task.call.record_time(packet.elapsed_ns, num_tasks)
                task.call.record_bytes(
                    sum(block.size for block in packet.result.blocks) // num_tasks
                )
                if packet.held_blocks:
                    blocks = {block.token: block for block in task.all_blocks()}
                    self.writer.retain([blocks[token] for token in set(packet.held_blocks)])
                    worker.held_blocks.update(packet.held_blocks)
                if isinstance(task, Bundle):
                    task.release(self.writer)
            # blocks of the initializer's arguments are not among the held ones
            released_blocks = worker.held_blocks.intersection(packet.released_blocks)
            self.writer.release(list(released_blocks))
            worker.held_blocks -= released_blocks
            return task

    def end(self, tasks: list[Task]) -> None:
        """Release tasks of one call that will not run again."""
        with self.lock:
            for task in tasks:
                if task.prepared_bytes:
                    self._uncount_prepared(task)
                task.release(self.writer)
            tasks[0].call.add_ended(len(tasks), self.writer)

    def discard(self, task: Task) -> None:
        """Release a task that was prepared and will not be submitted."""
        self._uncount_prepared(task)
        task.release(self.writer)

    def clear(self) -> list[Task]:
        """Remove and return all tasks, sent or waiting."""
        with self.lock:
            tasks = [*self.sent.values(), *self._waiting]
            for task in list(self.sent.values()):
                self.remove_sent(task)
            self._waiting.clear()
        return [member for task in tasks for member in task.members()]

    @property
    def is_empty(self) -> bool:
        """Whether no task waits and no task has been sent."""
        return not self.sent and not self._waiting

    @property
    def has_waiting(self) -> bool:
        """Whether tasks wait that the pipe has no room for."""
        return bool(self._waiting)

    # -- lost tasks

    def look_for_lost(self, workers: Iterable[PoolWorker]) -> None:
        """Look for tasks that an exited worker read without writing the ticket to its slot."""
        self._suspects = self._taken_by_no_worker(workers)
        self.recover_lost_at_s = time.monotonic() + _LOST_AFTER_S if self._suspects else None

    def recover_lost(self, workers: Iterable[PoolWorker]) -> None:
        """Queue the suspected tasks again that no worker has begun by now."""
        with self.lock:
            lost_tickets = self._suspects & self._taken_by_no_worker(workers)
            self.recover_lost_at_s = None
            for task in [self.sent[ticket] for ticket in sorted(lost_tickets, reverse=True)]:
                self.remove_sent(task)
                # a worker may run it after all: keep its arguments unchanged
                self._quarantined[task.ticket] = task.all_blocks()
                self.writer.retain(task.all_blocks())
                self._waiting.appendleft(task)

    def _taken_by_no_worker(self, workers: Iterable[PoolWorker]) -> set[int]:
        """Return tickets of tasks that have been read from the pipe but begun by no worker."""
        with self.lock:
            num_bytes = array.array("i", [0])
            fcntl.ioctl(self.pipe.fileno(), termios.FIONREAD, num_bytes)
            bytes_in_pipe = num_bytes[0]
            taken_tickets = set()
            for ticket, task in reversed(self.sent.items()):
                assert task.packet is not None
                if bytes_in_pipe > 0:
                    bytes_in_pipe -= len(task.packet)
                else:
                    taken_tickets.add(ticket)
            return taken_tickets - {worker.slot.read().ticket for worker in workers}

    # -- the end

    def stop(self, num_workers: int) -> None:
        """Write one STOP packet per worker, which is read after all tasks in the pipe."""
        with suppress(BlockingIOError):  # workers that get no STOP exit at the pipe's end
            for _ in range(num_workers):
                os.write(self._write.fileno(), STOP)

    def close_write(self) -> None:
        """Close the write end of the pipe; no task is sent any more."""
        with self.lock:
            self._closed = True
            self._write.close()

    def close_in_child(self) -> None:
        """Close the write end in a forked child, where the lock's owner does not exist."""
        self._closed = True
        self._write.close()

    def close(self) -> None:
        """Close the pipe and the descriptor of the arguments' memory."""
        self._write.close()
        self.pipe.close()
        self.arguments.close_descriptor()
