"""Turns of replicas that are more than the cores: as many run at a time as there are cores.

What a few shards work on stays in the caches, and threads do not take the GIL from one another. A
replica that waits for others gives its turn away.
"""

from __future__ import annotations

import threading
from collections import deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable


class ReplicaTurns:
    """A number of turns, handed from thread to thread in the order in which they ask.

    A semaphore would wake every thread of a barrier, most of them only to wait again.
    """

    def __init__(self, count: int) -> None:
        self._num_free = count
        self._is_open = False
        self._lock = threading.Lock()
        self._line: deque[Gate] = deque()

    def begin(self) -> None:
        """Take a turn; wait for it if all are taken."""
        gate = Gate()
        self.resume([gate])
        gate.wait()

    def end(self) -> None:
        """Give the turn to the next in line."""
        with self._lock:
            if self._line:
                self._line.popleft().open()
            else:
                self._num_free += 1

    def resume(self, gates: Iterable[Gate]) -> None:
        """Open gates, each as soon as there is a turn for the thread behind it."""
        with self._lock:
            for gate in gates:
                if self._is_open:
                    gate.open()
                elif self._num_free:
                    self._num_free -= 1
                    gate.open()
                else:
                    self._line.append(gate)

    def open(self) -> None:
        """Let all threads run from now on, those in line too."""
        with self._lock:
            self._is_open = True
            while self._line:
                self._line.popleft().open()


class Gate:
    """Lets one thread through once it is opened."""

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def wait(self) -> None:
        """Wait until it is open."""
        self._lock.acquire()

    def open(self) -> None:
        """Open it, once."""
        self._lock.release()
