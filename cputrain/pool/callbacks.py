"""A thread for what scripts want to have called: it may take long, raise, or use the pool."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Callbacks:
    """Calls them one after the other, from the first one on."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None] | None] = deque()
        self._more = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def put(self, action: Callable[[], None]) -> None:
        self._waiting.append(action)
        self._more.release()
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._run, name="cputrain pool's callbacks", daemon=True
            )
            self._thread.start()

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
            try:
                action()
            except BaseException as error:  # of a callback: nobody else can be told
                threading.excepthook(
                    threading.ExceptHookArgs((type(error), error, error.__traceback__, None))
                )
