"""A process that forks a pool's workers, and does nothing else.

It is forked when the pool is made, by the thread that makes it, and stays as the script was then:
one thread, no lock taken. A worker that replaces another one is forked by it, too. Were it forked
in the midst of a running script, it would inherit locks that nobody gives back: of the standard
output, of an import, of torch's generator. The first workers are forked while the script goes on.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import socket
import struct
import threading
import time
from multiprocessing import connection
from multiprocessing import process as processes
from typing import TYPE_CHECKING, Any, NamedTuple

from cputrain.errors import ResourceError
from cputrain.ipc import End, Memory, Sender
from cputrain.pool.slots import Slot
from cputrain.pool.worker import Setup, WorkerEnds, leave_signals_to_the_pool, serve

if TYPE_CHECKING:
    from collections.abc import Callable

_REQUEST = struct.Struct("<QQQQ")
_REPLY = struct.Struct("<Bqq")

TEMPLATE_GONE = errno.ECHILD
"""Why a worker was not started whose template has been killed."""

_UNKNOWN = 255
"""The exit code of a process of which nobody has told; multiprocessing's, too."""

_STARTED, _REFUSED, _ENDED = range(3)


class Shared(NamedTuple):
    """What all workers of a pool hold."""

    tasks: End
    life: End
    arguments: Memory
    slots: Memory


class ForkedProcess:
    """A worker's process, as a Process of multiprocessing shows it."""

    daemon = False

    def __init__(self, template: Zygote, name: str) -> None:
        self.template = template
        self.name = name
        self._pid = 0
        self._known = threading.Event()
        self.exitcode: int | None = None
        self.sentinel = -1
        """Can be read once the process has ended."""
        self.refused = 0
        """Why it could not be started, as the system numbers errors."""

    @property
    def pid(self) -> int:
        """Its number, which the template tells when it has been started."""
        self._known.wait(10.0)
        return self._pid

    ident = pid

    def started(self, pid: int) -> None:
        """It runs."""
        self._pid = pid
        try:
            self.sentinel = os.pidfd_open(pid)
        except OSError:  # it has ended already, and this can always be read
            self.sentinel = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._known.set()

    def not_started(self, error: int) -> None:
        """The system has refused it."""
        self.refused = error
        self._known.set()

    def is_alive(self) -> bool:
        """Whether it runs."""
        if self.exitcode is not None or self.refused:
            return False
        return self.sentinel < 0 or not self._has_ended()

    def _has_ended(self) -> bool:
        return bool(connection.wait([self.sentinel], 0))

    def terminate(self) -> None:
        """Ask it to end."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self.sentinel < 0 or self.exitcode is not None:
            return
        try:
            signal.pidfd_send_signal(self.sentinel, number)
        except OSError:  # it has ended
            return

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, and for what the template has to tell of it."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.exitcode is None and self.sentinel >= 0:
            left = 0.1 if end is None else min(0.1, end - time.monotonic())
            if left <= 0 or not self.template.listen(left):
                return

    def close(self) -> None:
        """It has ended: let go of its descriptor."""
        if self.exitcode is None:
            self.exitcode = _UNKNOWN
        sentinel, self.sentinel = self.sentinel, -1
        if sentinel >= 0:
            os.close(sentinel)


class Zygote:
    """The pool's side of it."""

    def __init__(self, process: Callable[..., Any], shared: Shared, setup: Setup) -> None:
        try:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise ResourceError.of(error, "a pool", "got no socket") from error
        self._lock = threading.Lock()
        self._born: dict[int, ForkedProcess] = {}
        self._asked: dict[int, ForkedProcess] = {}
        with theirs:
            self.process = process(target=_run, args=(theirs, self._socket, process, shared, setup))
            self.process.name = self.process.name.replace("Process", "PoolTemplate")
            try:
                self.process.start()
            except OSError as error:
                self._socket.close()
                raise ResourceError.of(error, "a pool's worker", "was not started") from error
        self.is_alive = True

    @staticmethod
    def can_run() -> bool:
        """Whether this system has what it takes."""
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):
            return False
        return True

    def fileno(self) -> int:
        """Can be read when there is something to listen to."""
        return self._socket.fileno()

    def bear(self, slot: Slot, seed: int, memory: Memory, descriptors: list[int]) -> ForkedProcess:
        """Ask for a worker."""
        # its number and name are those that it would have as this process's own child
        count = next(processes._process_counter)  # type: ignore[attr-defined]
        identity = (*processes.current_process()._identity, count)
        born = ForkedProcess(self, f"ForkPoolWorker-{':'.join(map(str, identity))}")
        with self._lock:
            self._asked[slot.number] = born
        while True:
            try:
                message = _REQUEST.pack(slot.number, seed, memory.size, count)
                socket.send_fds(self._socket, [message], descriptors)
            except (BrokenPipeError, ConnectionResetError):
                born.not_started(TEMPLATE_GONE)
                return born
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                time.sleep(0.001)  # until it has taken some of those that are on their way
            else:
                return born

    def listen(self, timeout: float = 0.0) -> bool:
        """Hear what has happened to workers; false if it will never tell again."""
        with self._lock:
            while self.is_alive and connection.wait([self._socket], timeout):
                try:
                    message = self._socket.recv(_REPLY.size)
                except OSError:
                    message = b""
                if not message:  # a worker of which it has not told tells of itself, if it lives
                    self.is_alive = False
                    break
                self._hear(*_REPLY.unpack(message))
                timeout = 0.0
        return self.is_alive

    def _hear(self, kind: int, number: int, value: int) -> None:
        if kind == _STARTED:
            self._born[value] = self._asked.pop(number)
            if self._born[value].sentinel < 0:
                self._born[value].started(value)
        elif kind == _REFUSED:
            self._asked.pop(number).not_started(value)
        elif number in self._born:
            self._born.pop(number).exitcode = value

    def close(self) -> None:
        """It ends when nobody can ask it for anything."""
        self.is_alive = False
        self._socket.close()
        if self.process.exitcode is None:
            self.process.join(1.0)  # sees no end if a worker of it, which holds its pipes, lives on
        if self.process.exitcode is None:
            self.process.kill()
        self.process.join()

    def close_in_child(self) -> None:
        """In a process that was forked off the pool's."""
        self._socket.close()


def _run(
    ours: socket.socket,
    pools: socket.socket,
    process: Callable[..., Any],
    shared: Shared,
    setup: Setup,
) -> None:
    """In the template."""
    pools.close()
    leave_signals_to_the_pool(shared.life)
    gc.freeze()  # a collection in a worker would otherwise copy the pages of all that it looks at
    children: dict[Any, Any] = {}
    while True:
        for ready in connection.wait([ours, *children]):
            if ready is not ours:
                child = children.pop(ready)
                child.join()
                _tell(ours, _ENDED, child.pid, child.exitcode)
                continue
            message, descriptors, _, _ = socket.recv_fds(ours, _REQUEST.size, 3)
            if not message:
                return
            child = _bear(ours, process, shared, setup, message, descriptors)
            if child is not None:
                children[child.sentinel] = child


def _bear(
    ours: socket.socket,
    process: Callable[..., Any],
    shared: Shared,
    setup: Setup,
    message: bytes,
    descriptors: list[int],
) -> Any:
    number, seed, size, count = _REQUEST.unpack(message)
    results, returned, memory = descriptors
    ends = WorkerEnds(
        shared.tasks,
        shared.life,
        shared.arguments,
        Sender(results),
        End(returned),
        Memory(memory, size),
        Slot(shared.slots, number),
    )
    child = process(target=serve, args=(ends, setup._replace(seed=seed), ours.close))
    child._identity = (*processes.current_process()._identity[:-1], count)
    child.name = f"ForkPoolWorker-{':'.join(map(str, child._identity))}"
    try:
        child.start()
    except OSError as error:
        _tell(ours, _REFUSED, number, error.errno or 0)
        return None
    finally:
        ends.close()
    _tell(ours, _STARTED, number, child.pid)
    return child


def _tell(ours: socket.socket, *reply: int) -> None:
    try:
        ours.send(_REPLY.pack(*reply))
    except OSError:  # the pool is gone, which the next look at the socket tells
        return
