"""Threads of this process that compute side by side, each with a team of its own on its own cores.

A thread's OpenMP team is made of threads that it starts itself, and those inherit its cores. So a
member is bound first, and says how many it is; what torch does in it stays on these cores.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from contextvars import copy_context
from functools import partial
from queue import SimpleQueue

import torch

from cputrain.runtime.root_forward import be_within
from cputrain.split.sync.barrier import BarrierAborted, ReplicaBarrier

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cputrain.machine import Cpus

    Job = Callable[[], Any]


LONGEST = 10.0
"""Seconds that Ctrl-C waits for what is not in Python: a backward, to its end."""


class _Here(threading.local):
    """What this thread is."""

    member = False


_here = _Here()


def within() -> bool:
    """Whether this thread is a member of a crew."""
    return _here.member


class Interrupted(BaseException):
    """Ctrl-C, for a member: raised in its thread as soon as that is back in Python."""


class Round:
    """What came of some jobs.

    What is told stays: nothing is lost where Ctrl-C comes between two lines of who waits for it.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._told: dict[int, tuple[Any, BaseException | None]] = {}
        self.over = threading.Event()
        """Set with the last."""

    def tell(self, number: int, result: Any, error: BaseException | None) -> None:
        """What came of the job of this member."""
        self._told[number] = (result, error)
        if len(self._told) == self._count:
            self.over.set()

    def results(self) -> list[Any]:
        """In the order of members. Raises the first error that is not of another's making."""
        told, self._told = self._told, {}
        errors = {number: error for number, (_, error) in told.items() if error is not None}
        if not errors:
            return [told[number][0] for number in range(self._count)]
        first = min(errors, key=lambda number: (isinstance(errors[number], BarrierAborted), number))
        try:
            raise errors[first]
        finally:  # it holds on to this frame: what it was about is to go when it goes
            told.clear()
            errors.clear()


class ReplicaThread:
    """One thread, and the queue that it takes jobs from."""

    def __init__(self, number: int, cores: Sequence[Cpus]) -> None:
        self.number = number
        self._cores = cores
        self._jobs: SimpleQueue[tuple[int, Job, Round] | None] = SimpleQueue()
        self._guard = threading.Lock()
        self._at_work = False
        self._interrupted = False
        self.thread = threading.Thread(
            target=self._run, name=f"cputrain-replica-{number}", daemon=True
        )
        self.thread.start()

    def give(self, number: int, job: Job, round_: Round) -> None:
        """Do this next, and tell there what came of it, by this number."""
        self._jobs.put((number, job, round_))

    def end(self) -> None:
        """Let the thread go."""
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Have it leave the job that it is at."""
        with self._guard:
            if self._at_work:
                self._interrupted = True
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(Interrupted)
                )

    def _run(self) -> None:
        _here.member = True
        be_within()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {cpu for core in self._cores for cpu in core})
        torch.get_num_threads()  # a thread's first operator would take the number of all others
        torch.set_num_threads(len(self._cores))
        while (given := self._jobs.get()) is not None:
            number, job, round_ = given
            round_.tell(number, *self._done(job))
            del job, round_, given  # nothing is kept alive until the next one

    def _done(self, job: Job) -> tuple[Any, BaseException | None]:
        """What came of a job; what interrupts it comes while this is on, or not at all."""
        result, error = None, None
        try:
            self._at_work = True
            result = job()
        except BaseException as caught:  # (raised again where the job came from)
            error = caught
        try:
            with self._guard:
                self._at_work = False
            if self._interrupted and not isinstance(error, Interrupted):
                for _ in range(20):  # it is on its way, and must not come later
                    time.sleep(0.001)
        except Interrupted as late:
            error = error or late
        self._at_work = self._interrupted = False
        try:
            return result, error
        finally:  # an error holds on to this frame
            del job, result, error


class Executor:
    """So many members, for as long as anybody has it; does one list of jobs at a time."""

    def __init__(self, places: Sequence[Sequence[Cpus]]) -> None:
        threads = torch.get_num_threads()
        self.members = [ReplicaThread(number, cores) for number, cores in enumerate(places)]
        self._lock = threading.Lock()
        weakref.finalize(self, _end, self.members, os.getpid())
        self.run([_nothing] * len(self.members))
        # what a thread says of its team is also what threads to come begin with
        torch.set_num_threads(threads)

    def run(
        self, jobs: Sequence[Job], meeting: ReplicaBarrier | None = None, mine: int | None = None
    ) -> list[Any]:
        """Do these side by side, one for each member; what came of them.

        The thread that asks does the job number `mine` itself. An error in one ends the others
        where they meet, and is raised here as it was.
        """
        return self._run(self.members[: len(jobs)], jobs, meeting, mine)

    def some(self, numbers: Sequence[int]) -> ExecutorSubset:
        """These of its members."""
        return ExecutorSubset(self, numbers)

    def _run(
        self,
        members: Sequence[ReplicaThread],
        jobs: Sequence[Job],
        meeting: ReplicaBarrier | None,
        mine: int | None,
    ) -> list[Any]:
        round_ = Round(len(jobs))
        with self._lock:
            try:
                for number, (member, job) in enumerate(zip(members, jobs, strict=True)):
                    if number != mine:
                        member.give(number, partial(copy_context().run, job), round_)
                if mine is not None:
                    round_.tell(mine, *_by_caller(jobs[mine]))
                round_.over.wait()
            except BaseException:  # Ctrl-C
                self._come_back(meeting)
                raise
        return round_.results()

    def _come_back(self, meeting: ReplicaBarrier | None) -> None:
        """Members leave what they are at; nobody is to wait for a job that was not given."""
        if meeting is not None:
            meeting.part()
        last = Round(len(self.members))
        for member in self.members:
            member.interrupt()
            member.give(member.number, _nothing, last)
        last.over.wait(LONGEST)


class ExecutorSubset:
    """Some members of a crew."""

    def __init__(self, crew: Executor, numbers: Sequence[int]) -> None:
        self._crew = crew
        self._members = [crew.members[number] for number in numbers]

    def run(
        self, jobs: Sequence[Job], meeting: ReplicaBarrier | None = None, mine: int | None = None
    ) -> list[Any]:
        """As the crew does: one job for each of these."""
        return self._crew._run(self._members[: len(jobs)], jobs, meeting, mine)

    def some(self, numbers: Sequence[int]) -> ExecutorSubset:
        """These of them."""
        return ExecutorSubset(self._crew, [self._members[number].number for number in numbers])


class InlineExecutor:
    """No crew: the thread that has the jobs does them."""

    def run(
        self, jobs: Sequence[Job], _meeting: ReplicaBarrier | None = None, _mine: int | None = None
    ) -> list[Any]:
        """One after the other."""
        return [job() for job in jobs]

    def some(self, _numbers: Sequence[int]) -> InlineExecutor:
        """The same."""
        return self


def _by_caller(job: Job) -> tuple[Any, BaseException | None]:
    """What came of a job that the caller does itself, as if it were a member."""
    _here.member = True
    try:
        return job(), None
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as caught:  # (raised again when the others are through)
        return None, caught
    finally:
        _here.member = False


def _nothing() -> None:
    """What a member begins with, so that it is bound and has its number of threads."""


_crews: weakref.WeakValueDictionary[tuple[int, tuple[Any, ...]], Executor] = (
    weakref.WeakValueDictionary()
)


def executor_on(places: Sequence[tuple[Cpus, ...]]) -> Executor:
    """The one on these cores: started when it is first asked for, and kept by whoever has it."""
    key = (os.getpid(), tuple(places))
    crew = _crews.get(key)
    if crew is None:
        crew = _crews[key] = Executor(places)
    return crew


def _end(members: Sequence[ReplicaThread], owner: int) -> None:
    """Let the threads go, as nobody has a job for them."""
    if owner == os.getpid():  # threads are not forked
        for member in members:
            member.end()
