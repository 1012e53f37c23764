"""The set of a pool's worker processes: start, poll, reap and replace them."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any

from cputrain.errors import CputrainError, WorkerDied
from cputrain.ipc import End, pipe, starting_workers
from cputrain.pool.seeds import seed_from
from cputrain.pool.slots import Slot
from cputrain.pool.workers import PoolWorker
from cputrain.pool.zygote import ZYGOTE_GONE, SharedResources, Zygote

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.ipc import ArenaMemory
    from cputrain.pool.worker import WorkerSetup

_START_ATTEMPTS = 3
"""Consecutive workers that may exit before they are ready, until the pool gives up."""

_GRACE_S = 1.0
"""Seconds between SIGTERM and SIGKILL."""


class Supervisor:
    """The worker processes of a pool, kept at the requested number."""

    def __init__(
        self,
        num_workers: int,
        process: Callable[..., Any],
        setup: WorkerSetup,
        starting_context: Callable[[], Any],
        task_pipe: End,
        arguments_memory: ArenaMemory,
    ) -> None:
        self._num_workers = num_workers
        self._process = process
        self.setup = setup
        self._starting_context = starting_context
        self.workers: list[PoolWorker] = []
        """Workers that take tasks."""
        self.exiting: list[PoolWorker] = []
        """Workers that have run their last task and are about to exit."""
        self._zygote: Zygote | None = None
        self._num_started = 0
        self._failed_starts = 0
        self._unproven: set[PoolWorker] = set()
        """Workers started since a worker was last ready: their exits count as failed starts."""
        num_slots = 2 * num_workers + 8
        self._free_slots = list(range(num_slots))
        life_read, life = pipe(of="a pool")
        self._life = End(life)
        self._shared = SharedResources(
            task_pipe, End(life_read), arguments_memory, Slot.room_for(num_slots)
        )
        self._poll = select.poll()
        self._inbox_fds: dict[int, PoolWorker] = {}
        self._sentinel_fds: dict[int, PoolWorker] = {}

    @property
    def all_workers(self) -> list[PoolWorker]:
        """Return the workers that take tasks and those that are about to exit."""
        return [*self.workers, *self.exiting]

    # -- starting

    def start(self) -> None:
        """Start the missing workers."""
        if self._zygote is None:
            with self._starting_context():
                self._start_first()
        self._start_workers()
        for worker in self.workers:
            self._register_worker(worker)

    def _start_first(self) -> None:
        """Start the first workers; fork the zygote where the platform has pidfds."""
        if not (self.setup.forked and Zygote.can_run()):
            self._start_workers()
            return
        if not self._num_started:
            # the first worker need not wait for the zygote, as nothing else runs yet
            self.workers.append(self._start_worker())
        with starting_workers(self._is_empty):
            self._zygote = Zygote(self._process, self._shared, self.setup)
        self._poll.register(self._zygote.fileno(), select.POLLIN)

    def _start_workers(self) -> None:
        """Start workers until there are as many as requested, or no slot is free."""
        # a worker that has run its last task may be slow to exit, and keeps its slot until then
        while len(self.workers) < self._num_workers and self._free_slots:
            self.workers.append(self._start_worker())
        if not self._free_slots and self.exiting:
            self.exiting[0].process.kill()  # all slots are taken: it does not exit by itself

    def _start_worker(self) -> PoolWorker:
        """Start one worker, by the zygote if there is one."""
        worker = PoolWorker(Slot(self._shared.slots, self._free_slots.pop()))
        worker.slot.end()
        self._unproven.add(worker)
        self._num_started += 1
        seed = seed_from(self.setup.seed, self._num_started)
        try:
            if self._zygote is not None:
                worker.start_from_zygote(self._zygote, seed)
            else:
                with starting_workers(self._is_empty):
                    worker.start(self._process, self._shared, self.setup._replace(seed=seed))
        except BaseException:
            self._close_worker(worker)
            raise
        return worker

    def _is_empty(self) -> bool:
        """Return whether no process of the pool is left."""
        # the zygote has inherited the arena, too, and so will the workers that it forks next
        return not self.workers and not self.exiting and self._zygote is None

    # -- polling

    def register_fd(self, descriptor: int) -> None:
        """Poll this file descriptor, too."""
        self._poll.register(descriptor, select.POLLIN)

    def _register_worker(self, worker: PoolWorker) -> None:
        """Register the worker's inbox and pidfd with the poll object, as far as they are known."""
        if worker.inbox.fileno() not in self._inbox_fds and not worker.inbox.is_at_end:
            self._inbox_fds[worker.inbox.fileno()] = worker
            self._poll.register(worker.inbox.fileno(), select.POLLIN)
        if worker.is_started and worker.sentinel not in self._sentinel_fds:
            self._sentinel_fds[worker.sentinel] = worker
            self._poll.register(worker.sentinel, select.POLLIN)

    def wait(
        self, timeout_ms: float | None
    ) -> tuple[list[PoolWorker], list[PoolWorker], list[int]]:
        """Return readable workers, exited workers and other ready file descriptors."""
        readable, exited, other_fds = [], [], []
        for fd, _ in self._poll.poll(timeout_ms):
            if self._zygote is not None and fd == self._zygote.fileno():
                self._receive_zygote_replies()
            elif fd in self._inbox_fds:
                readable.append(self._inbox_fds[fd])
            elif fd in self._sentinel_fds:
                exited.append(self._sentinel_fds[fd])
            else:
                other_fds.append(fd)
        return readable, exited, other_fds

    def _receive_zygote_replies(self) -> None:
        """Read which workers the zygote has started or could not start; exits come by pidfd."""
        assert self._zygote is not None
        if not self._zygote.listen():
            # it has been killed: the next start forks another zygote
            self._poll.unregister(self._zygote.fileno())
            self._zygote.close()
            self._zygote = None
        for worker in self.all_workers:  # a worker may have run its last task before this was read
            self._register_worker(worker)

    def drop_refused(self) -> OSError | None:
        """Drop workers that the system refused to start; return the error if none is left."""
        error = None
        for worker in [refused for refused in self.workers if refused.refusal_errno]:
            if worker.refusal_errno != ZYGOTE_GONE:  # another zygote will start the next worker
                error = OSError(worker.refusal_errno, os.strerror(worker.refusal_errno))
            self._unregister_worker(worker)
            self.workers.remove(worker)
            self._close_worker(worker)
        return error if not self.workers else None

    def on_inbox_closed(self, worker: PoolWorker) -> bool:
        """Unregister a closed inbox; return whether the worker was lost before it was reported."""
        fd = worker.inbox.fileno()
        if self._inbox_fds.pop(fd, None) is not None:
            self._poll.unregister(fd)
        if worker.is_started or (self._zygote is not None and worker.is_pending_in(self._zygote)):
            return False
        worker.process.mark_refused(ZYGOTE_GONE)
        return True

    def _unregister_worker(self, worker: PoolWorker) -> None:
        """Unregister the worker's descriptors from the poll object."""
        for fds in (self._inbox_fds, self._sentinel_fds):
            for fd in [fd for fd, registered in fds.items() if registered is worker]:
                self._poll.unregister(fd)
                del fds[fd]

    # -- ending

    def mark_exiting(self, worker: PoolWorker) -> None:
        """Mark a worker that has run its last task, so that a replacement is started."""
        worker.is_exiting = True
        if worker in self.workers:
            self.workers.remove(worker)
            self.exiting.append(worker)

    def reap(self, worker: PoolWorker) -> str:
        """Reap the worker and return its exit status as text."""
        self._unregister_worker(worker)
        exit_reason = worker.join()
        for workers in (self.workers, self.exiting):
            if worker in workers:
                workers.remove(worker)
        if worker in self._unproven and not worker.is_exiting:
            self._failed_starts += 1
        self._close_worker(worker)
        return exit_reason

    def _close_worker(self, worker: PoolWorker) -> None:
        """Free the worker's slot and close its descriptors."""
        self._free_slots.append(worker.slot.number)
        self._unproven.discard(worker)
        worker.close()

    def is_ready(self, worker: PoolWorker, pid: int) -> None:
        """Record that the worker has been set up and is process `pid`."""
        if not worker.is_started:  # by a zygote that was killed before it could report
            worker.process.mark_started(pid)
            self._register_worker(worker)
        self._failed_starts = 0
        self._unproven.clear()

    def is_crash_looping(self, exit_reason: str) -> CputrainError | None:
        """Return the error if too many workers in a row have exited before they were ready."""
        if self._failed_starts < _START_ATTEMPTS:
            return None
        return WorkerDied(
            "a pool's worker",
            "ended before it was ready",
            found=exit_reason,
            do="What it printed tells why. Where processes are spawned, a script must start its "
            'pool under `if __name__ == "__main__":`.',
        )

    def abandon(self) -> None:
        """Terminate the workers that have just been started, as others could not be."""
        for worker in [started for started in self.workers if not started.is_forked_by_zygote]:
            worker.process.terminate()
            worker.process.join()
            self.workers.remove(worker)
            self._close_worker(worker)
        self.end(is_immediate=lambda: True)

    def end(self, *, is_immediate: Callable[[], bool]) -> None:
        """Wait until all workers have exited; signal them once `is_immediate()` is true."""
        begin_s = time.monotonic()
        terminated: set[PoolWorker] = set()
        remaining = self.all_workers
        while remaining:
            if self._zygote is not None:
                self._receive_zygote_replies()
            for worker in remaining:
                if worker.inbox.is_at_end:
                    self.on_inbox_closed(worker)
            remaining = [worker for worker in remaining if not worker.has_ended()]
            if is_immediate():
                is_overdue = time.monotonic() > begin_s + _GRACE_S
                if is_overdue:
                    self._life.close()  # ends workers, too, whose start the zygote has not reported
                for worker in remaining:
                    if is_overdue:
                        worker.process.kill()
                    elif worker.is_started and worker not in terminated:
                        worker.process.terminate()
                        terminated.add(worker)
            if remaining:
                self._drain(remaining)
        for worker in self.all_workers:
            # `join` waits for the end of a pipe, which a process inherits that another thread
            # forks at the same time; once `exitcode` has reaped the worker, it does not
            _ = worker.process.exitcode
            worker.process.join(1.0)

    def _drain(self, workers: list[PoolWorker]) -> None:
        """Read and drop messages for up to 100 ms: workers block in write() until then."""
        poll = select.poll()
        if self._zygote is not None and self._zygote.is_alive:
            poll.register(self._zygote.fileno(), select.POLLIN)
        for worker in workers:
            if worker.is_started:
                poll.register(worker.sentinel, select.POLLIN)
            if not worker.inbox.is_at_end:
                poll.register(worker.inbox.fileno(), select.POLLIN)
        poll.poll(100)
        for worker in workers:
            worker.inbox.receive()

    def close(self) -> None:
        """Close all workers, the zygote and the shared descriptors."""
        for worker in self.all_workers:
            worker.close()
        self.workers.clear()
        self.exiting.clear()
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
        self._life.close()
        self._shared.life.close()
        self._shared.slots.close_descriptor()

    def close_in_child(self) -> None:
        """Close descriptors in a forked child, so that each end of a pipe sees the other close."""
        if self._zygote is not None:
            self._zygote.close_in_child()
        self._life.close()
        for worker in self.all_workers:
            worker.inbox.close()
            worker.outbox.close()
