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

    def __init__(self, number: int, cores: Sequence[Cpus], ended: SimpleQueue[Any]) -> None:
        self.number = number
        self._cores = cores
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._ended = ended
        self.thread = threading.Thread(
            target=self._run, name=f"cputrain-replica-{number}", daemon=True
        )
        self.thread.start()

    def give(self, job: Job | None) -> None:
        """Do this next; with None, end."""
        self._jobs.put(job)

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
                job = self._jobs.get()
            except Parted:  # it came late, for a job that was through
                continue
            if job is None:
                return
            result, error = None, None
            try:
                result = job()
            except BaseException as caught:  # (raised again where the job came from)
                error = caught
            self._tell(result, error)
            del job, result, error  # nothing is kept alive until the next one

    def _tell(self, result: Any, error: BaseException | None) -> None:
        try:
            self._ended.put((self.number, result, error))
        except Parted:
            self._ended.put((self.number, result, error))


class Crew:
    """So many members; does one list of jobs at a time."""

    def __init__(self, places: Sequence[Sequence[Cpus]]) -> None:
        threads = torch.get_num_threads()
        self._ended: SimpleQueue[Any] = SimpleQueue()
        self.members = [Member(number, cores, self._ended) for number, cores in enumerate(places)]
        self._lock = threading.Lock()
        self.run([_nothing] * len(self.members))
        # what a thread says of its team is also what threads to come begin with
        torch.set_num_threads(threads)

    def run(self, jobs: Sequence[Job], meeting: Meeting | None = None) -> list[Any]:
        """Do these side by side, one for each member; what came of them.

        An error in one ends the others where they meet, and is raised here as it was.
        """
        with self._lock:
            for member, job in zip(self.members, jobs, strict=False):
                member.give(job)
            return self._gather(len(jobs), meeting)

    def _gather(self, count: int, meeting: Meeting | None) -> list[Any]:
        results: dict[int, Any] = {}
        errors: dict[int, BaseException] = {}
        interrupt: BaseException | None = None
        while len(results) < count:
            try:
                number, result, error = self._ended.get()
            except BaseException as caught:  # (Ctrl-C: raised when all are back)
                interrupt = caught
                self._part(count, results, meeting)
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

    def _part(self, count: int, results: dict[int, Any], meeting: Meeting | None) -> None:
        if meeting is not None:
            meeting.part()
        for member in self.members[:count]:
            if member.number not in results:
                member.interrupt()

    def end(self) -> None:
        """Let the threads go."""
        for member in self.members:
            member.give(None)


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
