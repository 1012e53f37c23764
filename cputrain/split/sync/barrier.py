"""A barrier with an all-gather: each replica of a call passes a value and gets those of all."""

from __future__ import annotations

import threading
import time

from cputrain.errors import PartsDiffer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable
    from typing import Any


class BarrierAborted(BaseException):
    """Another replica has failed, so the result of this one is not needed.

    Not an Exception: a model that catches exceptions must not delay the end of the call.
    """


class ReplicaBarrier:
    """Barrier of a fixed number of replicas, with one rendezvous for each key.

    `threading.Barrier` passes no values, and waits on for a party that has finished.
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self._lock = threading.Lock()
        self._pending: dict[Hashable, _Rendezvous] = {}
        self._is_aborted = False
        self._finished: set[int] = set()
        self.waited_s = [0.0] * parties
        """Seconds that each replica has waited for others."""

    def all_gather(self, key: Hashable, index: int, value: Any) -> list[Any]:
        """Wait until all replicas have passed a value for this key; return the values in order."""
        with self._lock:
            if self._is_aborted:
                raise BarrierAborted
            rendezvous = self._pending.setdefault(key, _Rendezvous(self.parties))
            rendezvous.values[index] = value
            rendezvous.missing.remove(index)
            if not rendezvous.missing:
                del self._pending[key]
            if not rendezvous.missing or not rendezvous.missing.isdisjoint(self._finished):
                rendezvous.done.set()
        started_at = time.perf_counter()
        rendezvous.done.wait()
        self.waited_s[index] += time.perf_counter() - started_at
        if not rendezvous.missing:
            return rendezvous.values
        if self._is_aborted:
            raise BarrierAborted
        raise PartsDiffer(
            "the model",
            "must do the same with every part of a batch",
            found=f"one part at {key}, and another through without it",
            do="Train it unsplit.",
        )

    def leave(self, index: int) -> None:
        """Mark a replica as finished: a rendezvous that still misses it fails."""
        with self._lock:
            self._finished.add(index)
            for rendezvous in self._pending.values():
                if index in rendezvous.missing:
                    rendezvous.done.set()

    def abort(self) -> None:
        """Abort the barrier: every waiting replica raises BarrierAborted."""
        with self._lock:
            self._is_aborted = True
            for rendezvous in self._pending.values():
                rendezvous.done.set()


class _Rendezvous:
    """A rendezvous that some replicas have not reached yet."""

    def __init__(self, parties: int) -> None:
        self.values: list[Any] = [None] * parties
        self.missing = set(range(parties))
        self.done = threading.Event()
