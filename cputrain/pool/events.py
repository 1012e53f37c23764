"""Events and notifications that an interrupt of a waiting thread leaves intact."""

from __future__ import annotations

import _thread
from typing import Any

_CHECK_S = 1.0
"""Seconds after which a waiting thread checks again whether the event was set."""


class OnceEvent:
    """An event that is set once, and that an interrupt of a waiting thread leaves intact.

    `threading.Event` holds a lock in Python code: an interrupt there may leave the lock held
    forever, and `set` would then deadlock.
    """

    __slots__ = ("_gate", "_is_set")

    def __init__(self) -> None:
        self._gate = _thread.allocate_lock()
        self._gate.acquire()
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether the event has been set."""
        return self._is_set

    def set(self) -> None:
        """Set the event and wake all waiting threads."""
        if not self._is_set:
            self._is_set = True
            self._gate.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set or `timeout` seconds pass; return whether it is set."""
        remaining_s = float("inf") if timeout is None else timeout
        while not self._is_set and remaining_s > 0:
            # a thread that acquires the gate releases it for the next; if an interrupt comes in
            # between, the other threads see `_is_set` after at most `_CHECK_S`
            slice_s = min(remaining_s, _CHECK_S)
            if self._gate.acquire(True, slice_s):
                self._gate.release()
            remaining_s -= slice_s
        return self._is_set


class Notifier:
    """Wakes threads that wait for a state change under a lock; they hold no lock while they wait.

    In place of `threading.Condition`, whose Python code releases and acquires the lock while a
    thread waits: an interrupt between the two leaves it held, or releases it twice.
    """

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[Any] = []

    def ticket(self) -> Any:
        """Return a ticket for `wait`; called with the lock held, after checking the state."""
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
        """Wake all waiting threads; called with the lock held."""
        while self._waiters:
            self._waiters.pop().release()
