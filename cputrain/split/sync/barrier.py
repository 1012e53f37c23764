"""A barrier with an all-gather: each replica of a call passes a value and gets those of all."""

from __future__ import annotations

import threading
import time

from cputrain.errors import PartsDiffer
from cputrain.split.sync.turns import Gate, ReplicaTurns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from typing import Any


class BarrierAborted(BaseException):
    """Another replica has failed, so the result of this one is not needed.

    Not an Exception: a model that catches exceptions must not delay the end of the call.
    """


class ReplicaBarrier:
    """Barrier of a fixed number of replicas, with one rendezvous for each key.

    `threading.Barrier` passes no values, and waits on for a party that has finished.

    Args:
        parties: Number of replicas.
        num_turns: How many of them run at a time; by default all.
    """

    def __init__(self, parties: int, num_turns: int | None = None) -> None:
        self.parties = parties
        self.num_turns = parties if num_turns is None else num_turns
        """How many replicas run at a time."""
        self._lock = threading.Lock()
        self._turns = ReplicaTurns(self.num_turns)
        self._pending: dict[Hashable, _Rendezvous] = {}
        self._is_aborted = False
        self._finished: set[int] = set()
        self.on_wait: Callable[[], None] = _do_nothing
        """Called whenever a replica is about to wait: another one may run meanwhile."""
        self.waited_s = [0.0] * parties
        """Seconds that each replica has waited for others."""

    def begin_turn(self) -> None:
        """Wait until there is a turn for one more replica."""
        self._turns.begin()
        if self._is_aborted:
            raise BarrierAborted

    def end_turn(self) -> None:
        """Let another replica run."""
        self._turns.end()

    def all_reduce(
        self, key: Hashable, index: int, value: Any, combine: Callable[[list[Any]], Any]
    ) -> Any:
        """Wait until all replicas have passed a value for this key; return what they make.

        Args:
            key: Names the rendezvous.
            index: The replica.
            value: Its value.
            combine: Makes one value of all, which are in the order of the replicas. It is called
                once, by the last replica.
        """
        with self._lock:
            if self._is_aborted:
                raise BarrierAborted
            rendezvous = self._pending.setdefault(key, _Rendezvous(self.parties))
            rendezvous.values[index] = value
            rendezvous.missing.remove(index)
            is_last = not rendezvous.missing
            gate = None
            if is_last:
                del self._pending[key]
            elif rendezvous.missing.isdisjoint(self._finished):
                gate = Gate()
                rendezvous.gates.append(gate)
            else:
                self._let_go(rendezvous)
        if is_last:
            try:
                rendezvous.result = combine(rendezvous.values)
            except BaseException:
                self.abort()
                raise
            finally:
                rendezvous.values = []
                self._let_go(rendezvous)
        elif gate is not None:
            started_at = time.perf_counter()
            self._turns.end()
            self.on_wait()
            gate.wait()
            self.waited_s[index] += time.perf_counter() - started_at
        if not rendezvous.missing and not self._is_aborted:
            return rendezvous.result
        if self._is_aborted:
            raise BarrierAborted
        raise PartsDiffer(
            "the model",
            "must do the same with every part of a batch",
            found=f"one part at {key}, and another through without it",
            do="Train it unsplit.",
        )

    def all_gather(self, key: Hashable, index: int, value: Any) -> list[Any]:
        """Wait until all replicas have passed a value for this key; return the values in order."""
        values: list[Any] = self.all_reduce(key, index, value, list)
        return values

    def leave(self, index: int) -> None:
        """Mark a replica as finished: a rendezvous that still misses it fails."""
        with self._lock:
            self._finished.add(index)
            for rendezvous in self._pending.values():
                if index in rendezvous.missing:
                    self._let_go(rendezvous)

    def abort(self) -> None:
        """Abort the barrier: every waiting replica raises BarrierAborted."""
        self._turns.open()
        with self._lock:
            self._is_aborted = True
            for rendezvous in self._pending.values():
                self._let_go(rendezvous)

    def _let_go(self, rendezvous: _Rendezvous) -> None:
        gates, rendezvous.gates = rendezvous.gates, []
        self._turns.resume(gates)


def _do_nothing() -> None:
    """Where all replicas run anyway, nothing is to be begun."""


class _Rendezvous:
    """A rendezvous that some replicas have not reached yet."""

    def __init__(self, parties: int) -> None:
        self.values: list[Any] = [None] * parties
        self.result: Any = None
        self.missing = set(range(parties))
        self.gates: list[Gate] = []
        """Those of the replicas that wait."""
