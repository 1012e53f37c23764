"""The callback thread: user callbacks may block, raise, or use the pool."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from cputrain.pool.exit_wait import wait_at_exit

if TYPE_CHECKING:
    from collections.abc import Callable


class Callbacks:
    """Calls callbacks one after the other in a thread, which the first callback starts."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None] | None] = deque()
        self._semaphore = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def put(self, action: Callable[[], None]) -> None:
        """Queue a callback; call it at once if no thread can be started."""
        if self._thread is None:
            thread = threading.Thread(
                target=self._run, name="cputrain pool's callbacks", daemon=True
            )
            try:
                thread.start()
                wait_at_exit(thread)
            except RuntimeError:  # the system refuses another thread
                _call(action)
                return
            self._thread = thread
        self._waiting.append(action)
        self._semaphore.release()

    def stop(self) -> None:
        """End the thread after the queued callbacks."""
        if self._thread is not None:
            self._waiting.append(None)
            self._semaphore.release()

    def _run(self) -> None:
        """Run queued callbacks until `stop`."""
        while True:
            self._semaphore.acquire()
            action = self._waiting.popleft()
            if action is None:
                return
            _call(action)


def _call(action: Callable[[], None]) -> None:
    """Call a callback and report its exception."""
    try:
        action()
    except BaseException as error:  # raised by the callback
        _report(error)


def guarded(callback: Callable[[Any], Any] | None) -> Callable[[Any], None] | None:
    """Wrap a callback so that its exceptions are reported and the result stays available."""
    if callback is None:
        return None

    def call(value: Any) -> None:
        try:
            callback(value)
        except BaseException as error:  # raised by the user's callback
            _report(error)

    return call


def _report(error: BaseException) -> None:
    """Report an exception through `threading.excepthook`."""
    threading.excepthook(threading.ExceptHookArgs((type(error), error, error.__traceback__, None)))
