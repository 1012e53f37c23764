"""Watches a run of `cputrain diagnose`: first its steps as they are, then each operator of a few.

A step ends where an optimizer's does. Steps as they are give times, and what the system counted;
those behind them run under a mode of torch's that sees every operator: its time, the forms of its
tensors, what it computes and what it moves.
"""

from __future__ import annotations

import atexit
import json
import os
import time

from cputrain.runtime.counted import Counters, others_seconds
from cputrain.runtime.loader_clock import LoaderClock
from cputrain.runtime.operators import OperatorTrace
from cputrain.runtime.patching import Patch, never_compile
from cputrain.runtime.trial import end

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

WARM = 3
"""Steps before any is looked at."""

SLOW = 2.0
"""Seconds of a step from which on fewer are looked at."""


class Observer:
    """What was seen so far."""

    def __init__(
        self,
        torch: ModuleType,
        *,
        fd: int,
        diagnose: int,
        traced: int,
        seconds: float,
        threads: int,
    ) -> None:
        """Of so many steps as they are, or of those within so many seconds; then of `traced`. With
        so many threads, whatever the script says; 0 leaves that to it."""
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._torch = torch
        self._fd = fd
        self._most, self._traced, self._seconds = diagnose, traced, seconds
        self._owner = os.getpid()
        self._loaders = LoaderClock()
        self._operators = OperatorTrace(torch)
        self._counters = Counters()
        self._clocks: list[float] = []
        self._placed: dict[str, float] = {}
        self._steps: list[dict[str, float]] = []
        self._marks = self._marked()
        self._in = {"backward": 0.0, "optimizer": 0.0}
        self._stage, self._count = "warm", 0
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._at_begin: dict[str, float] = {}
        self._counted: dict[str, float] = {}
        self._trace_began: dict[str, float] = {}
        self._others_traced = 0.0
        self._optimizer_began = 0.0
        register_optimizer_step_pre_hook(self._begins)
        register_optimizer_step_post_hook(self._stepped)
        never_compile(Observer._begins, Observer._stepped)
        self._time_backward(torch)
        if threads:
            torch.set_num_threads(threads)
            Patch(torch, "set_num_threads", lambda _: None)
        atexit.register(self._tell, "ended")

    def _marked(self) -> dict[str, float]:
        return {"at": time.perf_counter(), "wait": self._loaders.seconds}

    def _time_backward(self, torch: ModuleType) -> None:
        autograd: Any = torch.autograd
        own = autograd.backward

        def backward(*args: Any, **options: Any) -> Any:
            begin = time.perf_counter()
            before = self._operators.phase
            self._operators.phase = "backward"
            try:
                return own(*args, **options)
            finally:
                self._operators.phase = before
                self._in["backward"] += time.perf_counter() - begin

        Patch(autograd, "backward", backward)

    def _begins(self, optimizer: Any, *_: object) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = _described(optimizer)
        self._operators.phase = "optimizer"
        self._optimizer_began = time.perf_counter()

    def _stepped(self, *_: object) -> None:
        self._operators.phase = "forward"
        self._in["optimizer"] += time.perf_counter() - self._optimizer_began
        now = self._marked()
        if self._stage == "as it is":
            self._steps.append({
                "seconds": now["at"] - self._marks["at"],
                "wait": now["wait"] - self._marks["wait"],
                **self._in,
            })  # fmt: skip
            self._clocks.append(self._counters.clock())
        self._count += 1
        self._go_on(now["at"] - self._marks["at"])
        self._in = dict.fromkeys(self._in, 0.0)
        self._marks = self._marked()

    def _go_on(self, last: float) -> None:
        """To the next stage, where this one is through. Several optimizers make one step."""
        many = max(1, len(self._optimizers))
        if self._stage == "warm":
            if self._count >= WARM * many or (self._count >= many and last > SLOW):
                self._stage, self._count, self._at_begin = "as it is", 0, self._counters.now()
        elif self._stage == "as it is":
            took = sum(one["seconds"] for one in self._steps)
            few = 2 * many
            if self._count >= self._most * many or (self._count >= few and took > self._seconds):
                ended = self._counters.now()
                self._placed = self._counters.placed()
                self._counted = {name: ended[name] - self._at_begin[name] for name in ended}
                self._stage, self._count = "traced", 0
                self._trace_began = {**self._counters.now(), "at": time.perf_counter()}
                self._operators.begin()
        elif self._count >= self._traced * many:
            self._operators.stop()
            ended = {**self._counters.now(), "at": time.perf_counter()}
            grown = {name: ended[name] - self._trace_began[name] for name in ended}
            self._others_traced = others_seconds(grown) / grown["at"]
            self._tell("enough")
            end()
        elif self._count % many == 0:
            self._operators.new_step()

    def _tell(self, how: str) -> None:
        if os.getpid() != self._owner or self._fd < 0:
            return
        fd, self._fd = self._fd, -1
        many = max(1, len(self._optimizers))
        traced = self._count / many if self._stage == "traced" else 0
        document = {
            "how": how, "stage": self._stage, "steps": self._steps, "counted": self._counted,
            "clocks": self._clocks, "placed": self._placed,
            "optimizers": list(self._optimizers.values()), "traced": traced,
            "torch": self._torch.__version__, "threads": self._torch.get_num_threads(),
            "loaders": sorted(self._loaders.kinds), "others_traced": self._others_traced,
            **self._operators.document(),
        }  # fmt: skip
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(document, file)


def _described(optimizer: Any) -> dict[str, Any]:
    weights = [one for group in optimizer.param_groups for one in group["params"]]
    group = optimizer.param_groups[0]
    return {
        "name": type(optimizer).__name__,
        "fused": bool(group.get("fused")),
        "can_fuse": "fused" in group and all(one.is_floating_point() for one in weights),
        "tensors": len(weights),
        "bytes": sum(one.numel() * one.element_size() for one in weights),
    }
