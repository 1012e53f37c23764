"""Where the replicas of one call meet: each brings a value, and each leaves with those of all."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any


class Parted(BaseException):
    """Somebody else will not come: what this thread does is of no use any more.

    Not an Exception: what a model catches must not hold it up.
    """


class Meeting:
    """As many meetings as there are keys, each of the same number of threads."""

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self._lock = threading.Lock()
        self._open: dict[Hashable, _Open] = {}
        self._parted = False

    def meet(self, key: Hashable, place: int, value: Any) -> list[Any]:
        """Wait for the others; the values of all, in the order of their places."""
        with self._lock:
            if self._parted:
                raise Parted
            here = self._open.setdefault(key, _Open(self.parties))
            here.values[place] = value
            here.missing -= 1
            if not here.missing:
                del self._open[key]
                here.everybody.set()
        here.everybody.wait()
        if here.missing:
            raise Parted
        return here.values

    def part(self) -> None:
        """Nobody waits any longer."""
        with self._lock:
            self._parted = True
            for here in self._open.values():
                here.everybody.set()


class _Open:
    """A meeting for which somebody has not come yet."""

    def __init__(self, parties: int) -> None:
        self.values: list[Any] = [None] * parties
        self.missing = parties
        self.everybody = threading.Event()
