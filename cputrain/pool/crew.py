"""The workers of a pool: how they are started, seen to end, and replaced."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING, Any

from cputrain.errors import CputrainError, WorkerDied
from cputrain.ipc import End, pipe, starting_workers
from cputrain.pool.seeds import seed_from
from cputrain.pool.slots import Slot
from cputrain.pool.workers import Worker
from cputrain.pool.zygote import TEMPLATE_GONE, Shared, Zygote

if TYPE_CHECKING:
    from collections.abc import Callable

    from cputrain.ipc import Memory
    from cputrain.pool.worker import Setup

_START_ATTEMPTS = 3
"""Workers in a row that may end before they are ready."""

_GRACE = 1.0
"""Seconds between the signal to end and the one that ends."""


class Crew:
    """As many workers as there should be."""

    def __init__(
        self,
        processes: int,
        process: Callable[..., Any],
        setup: Setup,
        starting: Callable[[], Any],
        tasks: End,
        arguments: Memory,
    ) -> None:
        self._processes = processes
        self._process = process
        self.setup = setup
        self._starting = starting
        self.workers: list[Worker] = []
        """Those that take tasks."""
        self.leaving: list[Worker] = []
        """Those that have done their last one."""
        self._template: Zygote | None = None
        self._started = 0
        self._failed_starts = 0
        self._new: set[Worker] = set()
        """Those started since somebody was last ready: of these alone the end is a bad sign."""
        places = 2 * processes + 8
        self._places = list(range(places))
        life_read, life = pipe(of="a pool")
        self._life = End(life)
        self._shared = Shared(tasks, End(life_read), arguments, Slot.room_for(places))
        self._poll = select.poll()
        self._ears: dict[int, Worker] = {}
        self._sentinels: dict[int, Worker] = {}

    @property
    def everybody(self) -> list[Worker]:
        """Those who take tasks, and those who are about to end."""
        return [*self.workers, *self.leaving]

    # -- starting

    def start(self) -> None:
        """Start those that are missing."""
        if self._template is None:
            with self._starting():
                self._begin()
        self._fill_up()
        for worker in self.workers:
            self._hear(worker)

    def _begin(self) -> None:
        """Fork what this process must fork itself."""
        if not (self.setup.forked and Zygote.can_run()):
            self._fill_up()
            return
        if not self._started:
            # the first one does not have to wait for the template, as nothing else runs yet
            self.workers.append(self._start_one())
        with starting_workers(self._is_over):
            self._template = Zygote(self._process, self._shared, self.setup)
        self._poll.register(self._template.fileno(), select.POLLIN)

    def _fill_up(self) -> None:
        # one that has done its last task may take its time to end, and keeps its place
        while len(self.workers) < self._processes and self._places:
            self.workers.append(self._start_one())
        if not self._places and self.leaving:
            self.leaving[0].process.kill()  # so long that there is none left: it will not end

    def _start_one(self) -> Worker:
        worker = Worker(Slot(self._shared.slots, self._places.pop()))
        worker.slot.end()
        self._new.add(worker)
        self._started += 1
        seed = seed_from(self.setup.seed, self._started)
        try:
            if self._template is not None:
                worker.start_from(self._template, seed)
            else:
                with starting_workers(self._is_over):
                    worker.start(self._process, self._shared, self.setup._replace(seed=seed))
        except BaseException:
            self._dismiss(worker)
            raise
        return worker

    def _is_over(self) -> bool:
        # the template has inherited it, too, and so will whom it forks next
        return not self.workers and not self.leaving and self._template is None

    # -- listening

    def listen_to(self, descriptor: int) -> None:
        """Wake up for this one, too."""
        self._poll.register(descriptor, select.POLLIN)

    def _hear(self, worker: Worker) -> None:
        if worker.inbox.fileno() not in self._ears and not worker.inbox.ended:
            self._ears[worker.inbox.fileno()] = worker
            self._poll.register(worker.inbox.fileno(), select.POLLIN)
        if worker.is_started and worker.sentinel not in self._sentinels:
            self._sentinels[worker.sentinel] = worker
            self._poll.register(worker.sentinel, select.POLLIN)

    def wait(self, milliseconds: float | None) -> tuple[list[Worker], list[Worker], list[int]]:
        """Those who have something to say, those who have ended, and what else was waited for."""
        say, ended, other = [], [], []
        for end, _ in self._poll.poll(milliseconds):
            if self._template is not None and end == self._template.fileno():
                self._listen_to_template()
            elif end in self._ears:
                say.append(self._ears[end])
            elif end in self._sentinels:
                ended.append(self._sentinels[end])
            else:
                other.append(end)
        return say, ended, other

    def _listen_to_template(self) -> None:
        """Workers have been started, or could not be; of their end, their own descriptors tell."""
        assert self._template is not None
        if not self._template.listen():
            # it has been killed: another one is made for the next worker, as well as now may be
            self._poll.unregister(self._template.fileno())
            self._template.close()
            self._template = None
        for worker in self.everybody:  # one may have done its last task before this was read
            self._hear(worker)

    def refused(self) -> OSError | None:
        """Let go of those that the system would not start; why, if nobody is left."""
        error = None
        for worker in [one for one in self.workers if one.refusal]:
            if worker.refusal != TEMPLATE_GONE:  # the next one is asked of another
                error = OSError(worker.refusal, os.strerror(worker.refusal))
            self._deafen(worker)
            self.workers.remove(worker)
            self._dismiss(worker)
        return error if not self.workers else None

    def has_hung_up(self, worker: Worker) -> bool:
        """Nothing more comes through its pipe; true if it is lost, as nobody else tells of it."""
        end = worker.inbox.fileno()
        if self._ears.pop(end, None) is not None:
            self._poll.unregister(end)
        if worker.is_started or (
            self._template is not None and worker.was_asked_of(self._template)
        ):
            return False
        worker.process.not_started(TEMPLATE_GONE)
        return True

    def _deafen(self, worker: Worker) -> None:
        for ears in (self._ears, self._sentinels):
            for end in [end for end, one in ears.items() if one is worker]:
                self._poll.unregister(end)
                del ears[end]

    # -- ending

    def leaves(self, worker: Worker) -> None:
        """It has done its last task: somebody else takes its place."""
        worker.leaving = True
        if worker in self.workers:
            self.workers.remove(worker)
            self.leaving.append(worker)

    def bury(self, worker: Worker) -> str:
        """Its process has ended; how."""
        self._deafen(worker)
        how = worker.join()
        for workers in (self.workers, self.leaving):
            if worker in workers:
                workers.remove(worker)
        if worker in self._new and not worker.leaving:
            self._failed_starts += 1
        self._dismiss(worker)
        return how

    def _dismiss(self, worker: Worker) -> None:
        self._places.append(worker.slot.number)
        self._new.discard(worker)
        worker.close()

    def is_ready(self, worker: Worker, pid: int) -> None:
        """It has been set up."""
        if not worker.is_started:  # by a template that was killed before it could tell
            worker.process.started(pid)
            self._hear(worker)
        self._failed_starts = 0
        self._new.clear()

    def hopeless(self, how: str) -> CputrainError | None:
        """Why it makes no sense to start any more, if it does not."""
        if self._failed_starts < _START_ATTEMPTS:
            return None
        return WorkerDied(
            "a pool's worker",
            "ended before it was ready",
            found=how,
            do="What it printed tells why. Where processes are spawned, a script must start its "
            'pool under `if __name__ == "__main__":`.',
        )

    def abandon(self) -> None:
        """End those that have just been started; not all could be."""
        for worker in [one for one in self.workers if not one.is_born]:
            worker.process.terminate()
            worker.process.join()
            self.workers.remove(worker)
            self._dismiss(worker)
        self.end(now=lambda: True)

    def end(self, *, now: Callable[[], bool]) -> None:
        """Wait until all have ended, and see to it if that is to be `now`."""
        begin = time.monotonic()
        asked: set[Worker] = set()
        left = self.everybody
        while left:
            if self._template is not None:
                self._listen_to_template()
            for worker in left:
                if worker.inbox.ended:
                    self.has_hung_up(worker)
            left = [worker for worker in left if not worker.has_ended()]
            if now():
                late = time.monotonic() > begin + _GRACE
                if late:
                    self._life.close()  # it is deadly to a worker of which nobody has told, too
                for worker in left:
                    if late:
                        worker.process.kill()
                    elif worker.is_started and worker not in asked:
                        worker.process.terminate()
                        asked.add(worker)
            if left:
                self._hear_out(left)
        for worker in self.everybody:
            worker.process.join(1.0)

    def _hear_out(self, workers: list[Worker]) -> None:
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

    def close(self) -> None:
        """Let go of everything."""
        for worker in self.everybody:
            worker.close()
        self.workers.clear()
        self.leaving.clear()
        if self._template is not None:
            self._template.close()
            self._template = None
        self._life.close()
        self._shared.life.close()
        self._shared.slots.close_descriptor()

    def close_in_child(self) -> None:
        """In a process forked off the pool's: so that each side sees the other end."""
        if self._template is not None:
            self._template.close_in_child()
        self._life.close()
        for worker in self.everybody:
            worker.inbox.close()
            worker.outbox.close()
