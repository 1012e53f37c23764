"""Where the replicas of one call meet: each brings a value, and each leaves with those of all."""

from __future__ import annotations

import threading
import time

from cputrain.errors import PartsDiffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any


class BarrierAborted(BaseException):
    """Somebody else has failed: what this thread does is of no use any more.

    Not an Exception: what a model catches must not hold it up.
    """


class ReplicaBarrier:
    """As many meetings as there are keys, each of the same number of threads."""

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self._lock = threading.Lock()
        self._open: dict[Hashable, _Open] = {}
        self._parted = False
        self._left: set[int] = set()
        self.waited = [0.0] * parties
        """Seconds that each has waited for the others."""

    def meet(self, key: Hashable, place: int, value: Any) -> list[Any]:
        """Wait for the others; the values of all, in the order of their places."""
        with self._lock:
            if self._parted:
                raise BarrierAborted
            here = self._open.setdefault(key, _Open(self.parties))
            here.values[place] = value
            here.missing.remove(place)
            if not here.missing:
                del self._open[key]
            if not here.missing or not here.missing.isdisjoint(self._left):
                here.settled.set()
        begin = time.perf_counter()
        here.settled.wait()
        self.waited[place] += time.perf_counter() - begin
        if not here.missing:
            return here.values
        if self._parted:
            raise BarrierAborted
        raise PartsDiffer(
            "the model",
            "must do the same with every part of a batch",
            found=f"one part at {key}, and another through without it",
            do="Train it unsplit.",
        )

    def leave(self, place: int) -> None:
        """This one is through: whoever waits for it, or will, waits in vain."""
        with self._lock:
            self._left.add(place)
            for here in self._open.values():
                if place in here.missing:
                    here.settled.set()

    def part(self) -> None:
        """Nobody waits any longer."""
        with self._lock:
            self._parted = True
            for here in self._open.values():
                here.settled.set()


class _Open:
    """A meeting for which somebody has not come yet."""

    def __init__(self, parties: int) -> None:
        self.values: list[Any] = [None] * parties
        self.missing = set(range(parties))
        self.settled = threading.Event()
