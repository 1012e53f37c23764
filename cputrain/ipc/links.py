"""Pipes between a process and its workers, with length-prefixed messages.

The parent's ends never block: `Outbox` queues what the pipe has no space for. Only a worker's end
may block, so parent and worker never deadlock. Messages are framed like those of multiprocessing's
connections.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from multiprocessing import reduction
from typing import Any

from cputrain.errors import ResourceError

_LENGTH_PREFIX = struct.Struct("!i")
_LONG_PREFIX = struct.Struct("!Q")


_MAX_NARROW_BYTES = 1 << 13
"""Bytes of the longest message that leaves a pipe at its default capacity."""


class End:
    """One end of a pipe, whose descriptor is closed exactly once.

    A `multiprocessing.connection.Connection` that is garbage-collected together with its user can
    close its descriptor twice, and the number may belong to another file by then.
    """

    _close = staticmethod(os.close)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        """Return the descriptor, or -1 once it is closed."""
        return self._descriptor

    def close(self) -> None:
        """Close the descriptor, unless it is closed already."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)

    __del__ = close

    def __reduce__(self) -> tuple[Any, ...]:
        # valid only while a process is started: the descriptor is duplicated into the child
        return _open_end_in_child, (type(self), reduction.DupFd(self._descriptor))


def _open_end_in_child(end_class: type[End], duplicate: Any) -> End:
    return end_class(duplicate.detach())


class Sender(End):
    """A worker's end of the pipe for its results; writes block."""

    def send(self, message: bytes) -> None:
        """Write a message, and block until the pipe has taken all of it."""
        remaining = memoryview(_with_length(message))
        while remaining:
            remaining = remaining[os.write(self._descriptor, remaining) :]


class Outbox(End):
    """The parent's end of a pipe that a worker reads; writes never block."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._pending = bytearray()
        self._is_widened = False
        # a DataLoader's pin-memory thread calls `flush` as well
        self._lock = threading.Lock()
        os.set_blocking(descriptor, False)

    def send(self, message: bytes) -> None:
        """Queue a message, and write as much of the queue as the pipe takes now."""
        with self._lock:
            if len(message) > _MAX_NARROW_BYTES and not self._is_widened:
                self._enlarge_pipe()
            self._pending += _with_length(message)
            self._write_pending()

    def send_raw(self, data: bytes) -> None:
        """Queue bytes without a length prefix, for a reader that needs no message boundaries."""
        with self._lock:
            self._pending += data
            self._write_pending()

    def flush(self) -> bool:
        """Write as much as the pipe takes; return whether nothing is left to write.

        That is also so if the pipe is closed: the queue is discarded then.
        """
        if not self._pending:
            return True
        with self._lock:
            return self._write_pending()

    def _enlarge_pipe(self) -> None:
        """Raise the pipe's capacity, so that a worker's next tasks fit whatever their size."""
        self._is_widened = True
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)
        except OSError:  # above the user's limit (pipe-user-pages-soft): they stay queued here
            return

    def _write_pending(self) -> bool:
        """Write as much of the queue as the pipe takes; return whether nothing is left to write."""
        while self._pending:
            try:
                written = os.write(self._descriptor, self._pending[: 1 << 16])
            except BlockingIOError:
                return False
            except OSError:  # the worker has exited or this end is closed: found elsewhere
                self._pending.clear()
                break
            del self._pending[:written]
        return True


class Inbox(End):
    """The parent's end of the pipe for a worker's results; reads never block."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._received_bytes = bytearray()
        self.is_at_end = False
        """Whether the worker has closed its end and all messages have been received."""
        os.set_blocking(descriptor, False)

    def receive(self) -> list[bytes]:
        """Return the complete messages received; set `is_at_end` at the end of the stream."""
        while not self.is_at_end:
            try:
                data = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self.is_at_end = not data
            self._received_bytes += data
            if len(data) < 1 << 16:
                break
        messages = []
        while (message := self._next_message()) is not None:
            messages.append(message)
        return messages

    def _next_message(self) -> bytes | None:
        """Take the next complete message from the received bytes; return None if there is none."""
        if len(self._received_bytes) < 4:
            return None
        (length,), begin = _LENGTH_PREFIX.unpack_from(self._received_bytes), 4
        if length < 0:
            if len(self._received_bytes) < 12:
                return None
            (length,), begin = _LONG_PREFIX.unpack_from(self._received_bytes, 4), 12
        if len(self._received_bytes) < begin + length:
            return None
        message = bytes(memoryview(self._received_bytes)[begin : begin + length])
        del self._received_bytes[: begin + length]
        return message


def _with_length(message: bytes) -> bytes:
    if len(message) > 0x7FFFFFFF:
        return b"".join((_LENGTH_PREFIX.pack(-1), _LONG_PREFIX.pack(len(message)), message))
    return b"".join((_LENGTH_PREFIX.pack(len(message)), message))


def pipe(flags: int = 0, *, of: str = "a worker") -> tuple[int, int]:
    """Create a pipe and return the descriptors of its reading and writing ends.

    Args:
        flags: Flags of `os.pipe2`.
        of: What the pipe belongs to, as the error names it: "a pool".

    Raises:
        ResourceError: The system refused the descriptors.
    """
    try:
        return os.pipe2(flags | os.O_CLOEXEC) if flags else os.pipe()
    except OSError as error:
        raise ResourceError.of(error, of, "got no pipe") from error
