"""Threads of this process that compute side by side, each with a team of its own on its own cores.

A thread's OpenMP team is made of threads that it starts itself, and those inherit its cores. So a
member is bound first, and says how many it is; what torch does in it stays on these cores.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from queue import SimpleQueue

import torch

from cputrain.runtime.outermost import be_within
from cputrain.split.meeting import Meeting, Parted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from cputrain.machine import Cpus

    Job = Callable[[], Any]


class _Here(threading.local):
    """What this thread is."""

    member = False


_here = _Here()


def within() -> bool:
    """Whether this thread is a member of a crew."""
    return _here.member


class Member:
    """One thread, and the queue that it takes jobs from."""

    def __init__(self, number: int, cores: Sequence[Cpus]) -> None:
        self.number = number
        self._cores = cores
        self._jobs: SimpleQueue[tuple[Job, SimpleQueue[Any]] | None] = SimpleQueue()
        self._owed: SimpleQueue[Any] | None = None
        self.thread = threading.Thread(
            target=self._run, name=f"cputrain-replica-{number}", daemon=True
        )
        self.thread.start()

    def give(self, job: Job, ended: SimpleQueue[Any]) -> None:
        """Do this next, and put there what came of it."""
        self._jobs.put((job, ended))

    def end(self) -> None:
        """Let the thread go."""
        self._jobs.put(None)

    def interrupt(self) -> None:
        """Have it part from what it does, as soon as it is back in Python."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(self.thread.ident or 0), ctypes.py_object(Parted)
        )

    def _run(self) -> None:
        _here.member = True
        be_within()
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, {cpu for core in self._cores for cpu in core})
        torch.set_num_threads(len(self._cores))
        while True:
            try:
                if not self._once():
                    return
            except Parted as parted:  # it may come between any two lines
                if self._owed is not None:
                    self._owed.put((self.number, None, parted))
                    self._owed = None

    def _once(self) -> bool:
        given = self._jobs.get()
        if given is None:
            return False
        job, self._owed = given
        result, error = None, None
        try:
            result = job()
        except BaseException as caught:  # (raised again where the job came from)
            error = caught
        self._owed.put((self.number, result, error))
        self._owed = None
        return True


class Crew:
    """So many members; does one list of jobs at a time."""

    def __init__(self, places: Sequence[Sequence[Cpus]]) -> None:
        threads = torch.get_num_threads()
        self.members = [Member(number, cores) for number, cores in enumerate(places)]
        self._lock = threading.Lock()
        self.run([_nothing] * len(self.members))
        # what a thread says of its team is also what threads to come begin with
        torch.set_num_threads(threads)

    def run(self, jobs: Sequence[Job], meeting: Meeting | None = None) -> list[Any]:
        """Do these side by side, one for each member; what came of them.

        An error in one ends the others where they meet, and is raised here as it was.
        """
        ended: SimpleQueue[Any] = SimpleQueue()  # of its own: Ctrl-C may leave something in it
        with self._lock:
            try:
                for member, job in zip(self.members, jobs, strict=False):
                    member.give(job, ended)
                return self._gather(len(jobs), ended, meeting)
            except BaseException:
                if meeting is not None:  # nobody is to wait for a job that was not given
                    meeting.part()
                raise

    def _gather(self, count: int, ended: SimpleQueue[Any], meeting: Meeting | None) -> list[Any]:
        results: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        interrupt: BaseException | None = None
        while len(results) < count:
            try:
                number, result, error = ended.get()
            except BaseException as caught:  # (Ctrl-C: raised when all are back)
                interrupt = caught
                if meeting is not None:
                    meeting.part()
                for member in self.members[:count]:
                    if member.number not in results:
                        member.interrupt()
                continue
            results[number] = result
            if error is not None:
                errors[number] = error
                if meeting is not None:
                    meeting.part()
        if interrupt is not None:
            raise interrupt
        for number in sorted(errors, key=lambda one: (isinstance(errors[one], Parted), one)):
            raise errors[number]
        return [results[number] for number in range(count)]

    def end(self) -> None:
        """Let the threads go."""
        for member in self.members:
            member.end()


class Alone:
    """No crew: the thread that has the jobs does them."""

    def run(self, jobs: Sequence[Job], _meeting: Meeting | None = None) -> list[Any]:
        """One after the other."""
        return [job() for job in jobs]


def _nothing() -> None:
    """What a member begins with, so that it is bound and has its number of threads."""


_crews: dict[tuple[int, tuple[Any, ...]], Crew] = {}
_users: dict[tuple[int, tuple[Any, ...]], set[int]] = {}


def crew_of(places: Sequence[tuple[Cpus, ...]], user: object) -> Crew:
    """The one on these cores: started when it is first asked for, and shared by all its users."""
    key = (os.getpid(), tuple(places))
    if key not in _crews:
        _crews[key] = Crew(places)
        _users[key] = set()
    if id(user) not in _users[key]:
        _users[key].add(id(user))
        weakref.finalize(user, _leave, id(user), key).atexit = False
    return _crews[key]


def leave(user: object, places: Sequence[tuple[Cpus, ...]]) -> None:
    """This one does not need it any more."""
    _leave(id(user), (os.getpid(), tuple(places)))


def _leave(user: int, key: tuple[int, tuple[Any, ...]]) -> None:
    """With the last user it ends."""
    if key not in _crews:
        return
    _users[key].discard(user)
    if not _users[key]:
        crew = _crews.pop(key)
        if key[0] == os.getpid():  # threads are not forked
            crew.end()


@atexit.register
def _end_all() -> None:
    for (owner, _), crew in _crews.items():
        if owner == os.getpid():
            crew.end()
