"""A thread for what scripts want to have called: it may take long, raise, or use the pool."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Callbacks:
    """Calls them one after the other, from the first one on."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None] | None] = deque()
        self._more = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def put(self, action: Callable[[], None]) -> None:
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name="cputrain pool's callbacks", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the system has no more threads for us
                _call(action)
                return
            self._thread = thread
        self._waiting.append(action)
        self._more.release()

    def end(self) -> None:
        if self._thread is not None:
            self._waiting.append(None)
            self._more.release()

    def _run(self) -> None:
        while True:
            self._more.acquire()
            action = self._waiting.popleft()
            if action is None:
                return
            _call(action)


def _call(action: Callable[[], None]) -> None:
    try:
        action()
    except BaseException as error:  # of a callback
        _tell(error)


def guarded(callback: Callable[[Any], Any] | None) -> Callable[[Any], None] | None:
    """A callback that raises is told of, and its result can be had all the same."""
    if callback is None:
        return None

    def call(value: Any) -> None:
        try:
            callback(value)
        except BaseException as error:  # of the script's own function
            _tell(error)

    return call


def _tell(error: BaseException) -> None:
    """As of an error in a thread: nobody waits for it."""
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
