"""The zygote (template process): a single-threaded process that forks a pool's workers.

The zygote is forked when the pool is made, by the thread that makes it, and keeps that state: one
thread, no lock held. It forks replacement workers, too. A worker forked from a running program
would inherit locks held by other threads, which no thread in the child releases: of stdout, of an
import, of torch's generator. The zygote forks the first workers while the program goes on.
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
from cputrain.ipc import ArenaMemory, End, Sender
from cputrain.pool.slots import Slot
from cputrain.pool.worker import PoolWorkerEnds, WorkerSetup, leave_signals_to_the_pool, serve

if TYPE_CHECKING:
    from collections.abc import Callable

_REQUEST = struct.Struct("<QQQQ")
_REPLY = struct.Struct("<Bqq")

ZYGOTE_GONE = errno.ECHILD
"""The errno of a worker that was not started because its zygote has been killed."""

_UNKNOWN = 255
"""The exit code of a process whose exit was not reported, as in multiprocessing."""

_STARTED, _REFUSED, _ENDED = range(3)


class SharedResources(NamedTuple):
    """Descriptors and memory that all workers of a pool inherit."""

    tasks: End
    life: End
    arguments: ArenaMemory
    slots: ArenaMemory


class ForkedProcess:
    """A process forked by the zygote, with the interface of `multiprocessing.Process`."""

    daemon = False

    def __init__(self, zygote: Zygote, name: str) -> None:
        self.zygote = zygote
        self.name = name
        self._pid = 0
        self._is_reported = threading.Event()
        self.exitcode: int | None = None
        self.sentinel = -1
        """A file descriptor, readable once the process has exited; -1 until it is started."""
        self.refused_errno = 0
        """The errno with which the system refused to start it; 0 otherwise."""

    @property
    def pid(self) -> int:
        """The process ID; waits up to 10 s for the zygote to report it."""
        self._is_reported.wait(10.0)
        return self._pid

    ident = pid

    def mark_started(self, pid: int) -> None:
        """Record that it runs as process `pid`."""
        self._pid = pid
        try:
            self.sentinel = os.pidfd_open(pid)
        except OSError:  # it has exited already; /dev/null is always readable
            self.sentinel = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._is_reported.set()

    def mark_refused(self, error_number: int) -> None:
        """Record that the system refused to start it."""
        self.refused_errno = error_number
        self._is_reported.set()

    def is_alive(self) -> bool:
        """Return whether it has neither exited nor been refused."""
        if self.exitcode is not None or self.refused_errno:
            return False
        return self.sentinel < 0 or not self._has_ended()

    def _has_ended(self) -> bool:
        """Return whether the process has exited."""
        return bool(connection.wait([self.sentinel], 0))

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        """Send a signal, unless the process is not started or has exited."""
        if self.sentinel < 0 or self.exitcode is not None:
            return
        try:
            signal.pidfd_send_signal(self.sentinel, number)
        except OSError:  # it has exited
            return

    def join(self, timeout: float | None = None) -> None:
        """Wait until the zygote has reported its exit code."""
        deadline_s = None if timeout is None else time.monotonic() + timeout
        while self.exitcode is None and self.sentinel >= 0:
            wait_s = 0.1 if deadline_s is None else min(0.1, deadline_s - time.monotonic())
            if wait_s <= 0 or not self.zygote.listen(wait_s):
                return

    def close(self) -> None:
        """Close the pidfd of an exited process."""
        if self.exitcode is None:
            self.exitcode = _UNKNOWN
        sentinel, self.sentinel = self.sentinel, -1
        if sentinel >= 0:
            os.close(sentinel)


class Zygote:
    """The pool's handle of the zygote process."""

    def __init__(
        self, process_class: Callable[..., Any], shared: SharedResources, setup: WorkerSetup
    ) -> None:
        try:
            self._socket, zygote_socket = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        except OSError as error:
            raise ResourceError.of(error, "a pool", "got no socket") from error
        self._lock = threading.Lock()
        self._running: dict[int, ForkedProcess] = {}
        self._pending: dict[int, ForkedProcess] = {}
        with zygote_socket:
            self.process = process_class(
                target=_run, args=(zygote_socket, self._socket, process_class, shared, setup)
            )
            self.process.name = self.process.name.replace("Process", "PoolTemplate")
            try:
                self.process.start()
            except OSError as error:
                self._socket.close()
                raise ResourceError.of(error, "a pool's worker", "was not started") from error
        self.is_alive = True

    @staticmethod
    def can_run() -> bool:
        """Return whether the kernel has pidfds."""
        try:
            os.close(os.pidfd_open(os.getpid()))
        except (AttributeError, OSError):
            return False
        return True

    def fileno(self) -> int:
        """Return the socket's descriptor, readable when the zygote has sent a reply."""
        return self._socket.fileno()

    def spawn(
        self, slot: Slot, seed: int, memory: ArenaMemory, descriptors: list[int]
    ) -> ForkedProcess:
        """Request a worker; return its process before it runs."""
        # its number and name are those of a direct child of this process
        process_count = next(processes._process_counter)  # type: ignore[attr-defined]
        identity = (*processes.current_process()._identity, process_count)
        forked = ForkedProcess(self, f"ForkPoolWorker-{':'.join(map(str, identity))}")
        with self._lock:
            self._pending[slot.number] = forked
        while True:
            try:
                message = _REQUEST.pack(slot.number, seed, memory.size, process_count)
                socket.send_fds(self._socket, [message], descriptors)
            except (BrokenPipeError, ConnectionResetError):
                forked.mark_refused(ZYGOTE_GONE)
                return forked
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:
                    raise
                time.sleep(0.001)  # until it has received some of the descriptors in flight
            else:
                return forked

    def listen(self, timeout: float = 0.0) -> bool:
        """Receive the zygote's replies; return False once it has closed its socket."""
        with self._lock:
            while self.is_alive and connection.wait([self._socket], timeout):
                try:
                    message = self._socket.recv(_REPLY.size)
                except OSError:
                    message = b""
                if not message:  # a worker that it has not reported sends READY itself, if it lives
                    self.is_alive = False
                    break
                self._handle_reply(*_REPLY.unpack(message))
                timeout = 0.0
        return self.is_alive

    def _handle_reply(self, kind: int, slot_or_pid: int, value: int) -> None:
        """Record a start, a refused start or an exit."""
        if kind == _STARTED:
            self._running[value] = self._pending.pop(slot_or_pid)
            if self._running[value].sentinel < 0:
                self._running[value].mark_started(value)
        elif kind == _REFUSED:
            self._pending.pop(slot_or_pid).mark_refused(value)
        elif slot_or_pid in self._running:
            self._running.pop(slot_or_pid).exitcode = value

    def close(self) -> None:
        """Close the socket, at which the zygote exits, and reap it."""
        self.is_alive = False
        self._socket.close()
        if self.process.exitcode is None:
            self.process.join(1.0)  # times out while a worker that inherited its sentinel lives
        if self.process.exitcode is None:
            self.process.kill()
        self.process.join()

    def close_in_child(self) -> None:
        """Close the socket in a process that was forked from the pool's."""
        self._socket.close()


def _run(
    zygote_socket: socket.socket,
    pool_socket: socket.socket,
    process_class: Callable[..., Any],
    shared: SharedResources,
    setup: WorkerSetup,
) -> None:
    """Serve requests in the zygote: fork workers and report their starts and exits."""
    pool_socket.close()
    leave_signals_to_the_pool(shared.life)
    gc.freeze()  # a collection in a worker would otherwise copy the pages of all tracked objects
    children: dict[Any, Any] = {}
    while True:
        for ready in connection.wait([zygote_socket, *children]):
            if ready is not zygote_socket:
                child = children.pop(ready)
                child.join()
                _send_reply(zygote_socket, _ENDED, child.pid, child.exitcode)
                continue
            message, descriptors, _, _ = socket.recv_fds(zygote_socket, _REQUEST.size, 3)
            if not message:
                return
            child = _spawn(zygote_socket, process_class, shared, setup, message, descriptors)
            if child is not None:
                children[child.sentinel] = child


def _spawn(
    zygote_socket: socket.socket,
    process_class: Callable[..., Any],
    shared: SharedResources,
    setup: WorkerSetup,
    message: bytes,
    descriptors: list[int],
) -> Any:
    """Fork the requested worker; return its process, or None if the system refused it."""
    slot_number, seed, memory_size, process_count = _REQUEST.unpack(message)
    results, returned, memory = descriptors
    ends = PoolWorkerEnds(
        shared.tasks,
        shared.life,
        shared.arguments,
        Sender(results),
        End(returned),
        ArenaMemory(memory, memory_size),
        Slot(shared.slots, slot_number),
    )
    child = process_class(target=serve, args=(ends, setup._replace(seed=seed), zygote_socket.close))
    child._identity = (*processes.current_process()._identity[:-1], process_count)
    child.name = f"ForkPoolWorker-{':'.join(map(str, child._identity))}"
    try:
        child.start()
    except OSError as error:
        _send_reply(zygote_socket, _REFUSED, slot_number, error.errno or 0)
        return None
    finally:
        ends.close()
    _send_reply(zygote_socket, _STARTED, slot_number, child.pid)
    return child


def _send_reply(zygote_socket: socket.socket, *reply: int) -> None:
    """Send a reply to the pool; a closed socket is ignored."""
    try:
        zygote_socket.send(_REPLY.pack(*reply))
    except OSError:  # the pool's process has exited: the next recv() returns nothing
        return
