"""The pipes between us and a worker, and the messages on them.

We never block on a pipe: what a worker does not take at once waits here. A worker may
block, so both never wait for one another. Messages are length-prefixed as those of
multiprocessing's connections.
"""

from __future__ import annotations

import fcntl
import os
import struct
import threading
from multiprocessing import reduction
from typing import Any

from cputrain.errors import ResourceError

_LENGTH = struct.Struct("!i")
_LONG = struct.Struct("!Q")


_ROOMY = 1 << 13
"""Bytes of a message of which a pipe holds several."""


class End:
    """One end of a pipe, closed once.

    A connection of multiprocessing closes its descriptor when it is collected, and then again when
    it is told to, as happens when an iterator is collected with it: another's descriptor may have
    that number by then.
    """

    _close = staticmethod(os.close)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            self._close(descriptor)

    __del__ = close

    def __reduce__(self) -> tuple[Any, ...]:
        # only while a process is started: the descriptor is duplicated into the child
        return _received, (type(self), reduction.DupFd(self._descriptor))


def _received(kind: type[End], duplicate: Any) -> End:
    return kind(duplicate.detach())


class Sender(End):
    """A worker's end of its results."""

    def send(self, message: bytes) -> None:
        """Wait until all of it has been taken."""
        left = memoryview(_framed(message))
        while left:
            left = left[os.write(self._descriptor, left) :]


class Outbox(End):
    """Our end of what a worker reads."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._waiting = bytearray()
        self._widened = False
        # the thread that pins memory waits for results, and so hands over tasks too
        self._lock = threading.Lock()
        os.set_blocking(descriptor, False)

    def send(self, message: bytes) -> None:
        """Queue a message, and hand over what the pipe takes now."""
        with self._lock:
            if len(message) > _ROOMY and not self._widened:
                self._widen()
            self._waiting += _framed(message)
            self._hand_over()

    def send_raw(self, data: bytes) -> None:
        """The same without a length, for what can be cut anywhere."""
        with self._lock:
            self._waiting += data
            self._hand_over()

    def flush(self) -> bool:
        """Whether everything has been handed over, or never will be."""
        if not self._waiting:
            return True
        with self._lock:
            return self._hand_over()

    def _widen(self) -> None:
        """A worker should find its next tasks in the pipe, whatever their size."""
        self._widened = True
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, 1 << 20)
        except OSError:  # more than this user may have: then they wait here
            return

    def _hand_over(self) -> bool:
        while self._waiting:
            try:
                written = os.write(self._descriptor, self._waiting[: 1 << 16])
            except BlockingIOError:
                return False
            except OSError:  # the worker is gone, or this end: torch will tell
                self._waiting.clear()
                break
            del self._waiting[:written]
        return True


class Inbox(End):
    """Our end of a worker's results."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor)
        self._read = bytearray()
        self.ended = False
        os.set_blocking(descriptor, False)

    def receive(self) -> list[bytes]:
        """Whole messages that have arrived; sets `ended` at the end of the stream."""
        while not self.ended:
            try:
                read = os.read(self._descriptor, 1 << 16)
            except BlockingIOError:
                break
            except OSError:
                read = b""
            self.ended = not read
            self._read += read
            if len(read) < 1 << 16:
                break
        messages = []
        while (message := self._whole()) is not None:
            messages.append(message)
        return messages

    def _whole(self) -> bytes | None:
        if len(self._read) < 4:
            return None
        (length,), begin = _LENGTH.unpack_from(self._read), 4
        if length < 0:
            if len(self._read) < 12:
                return None
            (length,), begin = _LONG.unpack_from(self._read, 4), 12
        if len(self._read) < begin + length:
            return None
        message = bytes(memoryview(self._read)[begin : begin + length])
        del self._read[: begin + length]
        return message


def _framed(message: bytes) -> bytes:
    if len(message) > 0x7FFFFFFF:
        return b"".join((_LENGTH.pack(-1), _LONG.pack(len(message)), message))
    return b"".join((_LENGTH.pack(len(message)), message))


def pipe(flags: int = 0, *, of: str = "a worker") -> tuple[int, int]:
    """The reading and the writing end of a pipe; an error that says what the system refused."""
    try:
        return os.pipe2(flags | os.O_CLOEXEC) if flags else os.pipe()
    except OSError as error:
        raise ResourceError.of(error, of, "got no pipe") from error
