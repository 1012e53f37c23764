"""Ctrl-C while a pool changes its state: deferred until it has, and no lock is left held.

Python raises KeyboardInterrupt between any two instructions of the main thread. What it drops in
finalizers is delivered again by `shared.interrupts`.
"""

from __future__ import annotations

import _signal  # signal.signal converts to enums and back, which takes longer than all the rest
import _thread
import signal
import threading
from typing import Any

_SIGINT = int(signal.SIGINT)

_CHECK_S = 1.0
"""Seconds after which a thread that waits at an event looks whether it was set."""


class DeferredInterrupts:
    """Defer the main thread's SIGINT handler to the end of the block; a no-op in other threads.

    Blocking the signal would not do: another thread receives it then, and Python calls the
    handler in the main thread all the same.
    """

    __slots__ = ("_frame", "_handler", "_is_pending")

    def __init__(self) -> None:
        self._handler: Any = None
        self._is_pending = False
        self._frame: Any = None

    def __enter__(self) -> None:
        if _thread.get_ident() != threading.main_thread().ident:
            return
        handler = _signal.getsignal(_SIGINT)
        if callable(handler):  # neither ignored nor left to the system nor set by C code
            self._handler = handler
            try:
                _signal.signal(_SIGINT, self._note)
            except ValueError:  # a main thread, but not of the main interpreter
                self._handler = None

    def __exit__(self, *_: object) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        if _signal.getsignal(_SIGINT) == self._note:  # nobody has set another one meanwhile
            _signal.signal(_SIGINT, handler)
        if self._is_pending:
            handler(_SIGINT, self._frame)

    def _note(self, _: int, frame: Any) -> None:
        self._is_pending = True
        self._frame = frame


class OnceEvent:
    """An event that is set once, and that an interrupt of a waiting thread leaves intact.

    `threading.Event` holds a lock in Python code: an interrupt there may leave it held for ever,
    and then whoever sets the event waits for ever.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self._is_set = False

    def is_set(self) -> bool:
        """Whether it has been set."""
        return self._is_set

    def set(self) -> None:
        """Set it, and wake all threads that wait."""
        if not self._is_set:
            self._is_set = True
            self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set; return whether it is."""
        remaining_s = float("inf") if timeout is None else timeout
        while not self._is_set and remaining_s > 0:
            # the one that passes the gate opens it for the next; should an interrupt come between
            # the two, the others find out by looking
            slice_s = min(remaining_s, _CHECK_S)
            if self._gate.acquire(True, slice_s):
                self._gate.release()
            remaining_s -= slice_s
        return self._is_set


class Notifier:
    """Wakes threads that wait for a change of state under a lock; holds nothing while they wait.

    In place of `threading.Condition`, whose Python code releases and acquires the lock while a
    thread waits: an interrupt between the two leaves it held, or releases it twice.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[Any] = []

    def ticket(self) -> Any:
        """Return what `wait` takes; called with the lock held, after a look at the state."""
        waiter = _thread.allocate_lock()
        waiter.acquire()
        self._waiters.append(waiter)
        return waiter

    @staticmethod
    def wait(ticket: Any, timeout: float | None = None) -> None:
        """Wait for the next `notify_all`; called without the lock."""
        if timeout is None:
            ticket.acquire()
        else:
            ticket.acquire(True, max(0.0, timeout))

    def notify_all(self) -> None:
        """Wake all threads; called with the lock held."""
        while self._waiters:
            self._waiters.pop().release()
