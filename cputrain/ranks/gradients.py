"""How the ranks' gradients are added up: in shared memory or by torch, whichever is faster.

A hook of DistributedDataParallel. Its first steps are made in both ways, in turns; the time of
whole steps decides, the same for all ranks, as what torch does runs beside the backward.
"""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import distributed

from cputrain.ranks.neighbours import neighbours

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch._C._distributed_c10d import GradBucket

    from cputrain.ranks.neighbours import Neighbours

TURN = 4
"""Steps of one way before it is the other's turn; the first of them is not counted."""

TURNS = ("torch", "shared", "torch", "shared", "torch", "shared")


class GradientAllReduce:
    """For one model."""

    def __init__(
        self, group: Any, *, measured: bool, chose: Callable[[], None] = lambda: None
    ) -> None:
        """`chose` is told where gradients are added up in shared memory from now on."""
        self._group, self._count = group, group.size()
        self._chose = chose
        self._measured = measured
        self._neighbours: Neighbours | None = None
        self._step = 0
        self._begin = 0.0
        self._took: dict[str, list[float]] = {"torch": [], "shared": []}
        self.way: str | None = None
        """The one that was chosen; empty while both are tried, None before the first gradient."""
        self.other: Callable[[GradBucket], Any] | None = None
        """A hook that the script has registered later; it has the last word."""

    def __call__(self, bucket: GradBucket) -> Any:
        """Begin to add up a part of the gradients; called as they are there, in one order."""
        if self.other is not None:
            return self.other(bucket)
        if self.way is None:  # now, as all ranks are here
            self._begin_with(neighbours(self._group, _patience(self._group)))
        way = self.way or TURNS[self._step // TURN]
        whole = bucket.buffer()
        if way == "torch" or self._neighbours is None:
            work = distributed.all_reduce(whole.div_(self._count), group=self._group, async_op=True)
            added = work.get_future().then(lambda done: done.value()[0])
        else:
            self._neighbours.add_up(whole, self._count)
            added = torch.futures.Future()
            added.set_result(whole)
        if not self.way and bucket.is_last():
            self._count_step(way)
        return added

    def _begin_with(self, found: Neighbours | None) -> None:
        """Where one rank measures, or all are to be the same each time, all do as one."""
        self._neighbours = found
        if found is None:
            self._choose("torch")
            return
        same = torch.are_deterministic_algorithms_enabled()
        every = torch.tensor([float(self._measured), float(same)])
        found.add_up(every)
        self._choose("" if every[0] and not every[1] else "shared")

    def _choose(self, way: str) -> None:
        self.way = way
        if way == "shared":
            self._chose()

    def close(self) -> None:
        """The model is gone."""
        if self._neighbours is not None:
            self._neighbours.close()

    def _count_step(self, way: str) -> None:
        now = time.perf_counter()
        if self._step % TURN:
            self._took[way].append(now - self._begin)
        self._begin = now
        self._step += 1
        if self._step == len(TURNS) * TURN:
            every = torch.tensor([median(self._took[one]) for one in ("torch", "shared")])
            assert self._neighbours is not None
            self._neighbours.add_up(every)
            self._choose("shared" if every[1] < every[0] else "torch")


def _patience(group: Any) -> float:
    """Seconds that the group waits for a rank."""
    backend = group._get_backend(torch.device("cpu"))
    timeout = getattr(getattr(backend, "options", None), "_timeout", distributed.default_pg_timeout)
    return float(timeout.total_seconds())
