"""Record a run of `cputrain diagnose`: time undisturbed steps, then trace operators of a few more.

A step ends with the step of an optimizer. Undisturbed steps give step times and system
counters. Traced steps run under a TorchDispatchMode that records every operator: its time, its
tensors' shapes, its FLOPs and its bytes.
"""

from __future__ import annotations

import atexit
import time

from cputrain.runtime.counters import Counters, other_cpu_seconds
from cputrain.runtime.loader_clock import LoaderClock
from cputrain.runtime.operators import OperatorTrace
from cputrain.runtime.patching import Patch, never_compile
from cputrain.runtime.trial import end_process
from cputrain.runtime.trial_document import TrialDocument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

NUM_WARMUP_STEPS = 3
"""Number of warm-up steps before timing."""

SLOW_STEP_S = 2.0
"""Step time in seconds above which one step of warm-up is enough."""


class Observer:
    """Records step times, counters and operators, and writes them when the run ends."""

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
        """Register optimizer hooks and patch `torch.autograd.backward`.

        Args:
            fd: File descriptor that the JSON document is written to.
            diagnose: Largest number of undisturbed steps.
            traced: Number of traced steps.
            seconds: Seconds after which two undisturbed steps are enough.
            threads: Intra-op threads, whatever the script sets; 0 leaves them to the script.
        """
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        self._torch = torch
        self._document = TrialDocument(fd)
        self._max_steps, self._num_traced, self._max_s = diagnose, traced, seconds
        self._loaders = LoaderClock()
        self._operators = OperatorTrace(torch)
        self._counters = Counters()
        self._clocks: list[float] = []
        self._placed: dict[str, float] = {}
        self._steps: list[dict[str, float]] = []
        self._last_marks = self._read_marks()
        self._phase_s = {"backward": 0.0, "optimizer": 0.0}
        self._stage, self._count = "warm", 0
        self._optimizers: dict[int, dict[str, Any]] = {}
        self._at_begin: dict[str, float] = {}
        self._counted: dict[str, float] = {}
        self._at_trace_begin: dict[str, float] = {}
        self._other_cpus_traced = 0.0
        self._optimizer_started_at = 0.0
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)
        never_compile(Observer._before_step, Observer._after_step)
        self._patch_backward(torch)
        if threads:
            torch.set_num_threads(threads)
            Patch(torch, "set_num_threads", lambda _: None)
        atexit.register(self._write, "ended")

    def _read_marks(self) -> dict[str, float]:
        """Return the current time, and the seconds waited for loaders so far."""
        return {"at": time.perf_counter(), "wait": self._loaders.seconds}

    def _patch_backward(self, torch: ModuleType) -> None:
        autograd: Any = torch.autograd
        original = autograd.backward

        def backward(*args: Any, **kwargs: Any) -> Any:
            begin = time.perf_counter()
            previous = self._operators.phase
            self._operators.phase = "backward"
            try:
                return original(*args, **kwargs)
            finally:
                self._operators.phase = previous
                self._phase_s["backward"] += time.perf_counter() - begin

        Patch(autograd, "backward", backward)

    def _before_step(self, optimizer: Any, *_: object) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = _describe(optimizer)
        self._operators.phase = "optimizer"
        self._optimizer_started_at = time.perf_counter()

    def _after_step(self, *_: object) -> None:
        self._operators.phase = "forward"
        self._phase_s["optimizer"] += time.perf_counter() - self._optimizer_started_at
        now = self._read_marks()
        if self._stage == "as it is":
            self._steps.append({
                "seconds": now["at"] - self._last_marks["at"],
                "wait": now["wait"] - self._last_marks["wait"],
                **self._phase_s,
            })  # fmt: skip
            self._clocks.append(self._counters.clock())
        self._count += 1
        self._advance(now["at"] - self._last_marks["at"])
        self._phase_s = dict.fromkeys(self._phase_s, 0.0)
        self._last_marks = self._read_marks()

    def _advance(self, step_s: float) -> None:
        """Enter the next stage if this one is complete; a step has one call per optimizer."""
        num_optimizers = max(1, len(self._optimizers))
        if self._stage == "warm":
            if self._count >= NUM_WARMUP_STEPS * num_optimizers or (
                self._count >= num_optimizers and step_s > SLOW_STEP_S
            ):
                self._stage, self._count, self._at_begin = "as it is", 0, self._counters.now()
        elif self._stage == "as it is":
            elapsed_s = sum(step["seconds"] for step in self._steps)
            min_steps = 2 * num_optimizers
            if self._count >= self._max_steps * num_optimizers or (
                self._count >= min_steps and elapsed_s > self._max_s
            ):
                at_end = self._counters.now()
                self._placed = self._counters.placed()
                self._counted = {name: at_end[name] - self._at_begin[name] for name in at_end}
                self._stage, self._count = "traced", 0
                self._at_trace_begin = {**self._counters.now(), "at": time.perf_counter()}
                self._operators.begin()
        elif self._count >= self._num_traced * num_optimizers:
            self._operators.stop()
            at_end = {**self._counters.now(), "at": time.perf_counter()}
            counted = {name: at_end[name] - self._at_trace_begin[name] for name in at_end}
            self._other_cpus_traced = other_cpu_seconds(counted) / counted["at"]
            self._write("enough")
            end_process()
        elif self._count % num_optimizers == 0:
            self._operators.new_step()

    def _write(self, reason: str) -> None:
        if not self._document.is_due:
            return
        num_optimizers = max(1, len(self._optimizers))
        traced = self._count / num_optimizers if self._stage == "traced" else 0
        document = {
            "how": reason, "stage": self._stage, "steps": self._steps, "counted": self._counted,
            "clocks": self._clocks, "placed": self._placed,
            "optimizers": list(self._optimizers.values()), "traced": traced,
            "torch": self._torch.__version__, "threads": self._torch.get_num_threads(),
            "loaders": sorted(self._loaders.kinds), "others_traced": self._other_cpus_traced,
            **self._operators.document(),
        }  # fmt: skip
        self._document.write(document)


def _describe(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer's name, size, and whether it is fused or can be."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    group = optimizer.param_groups[0]
    return {
        "name": type(optimizer).__name__,
        "fused": bool(group.get("fused")),
        "can_fuse": "fused" in group and all(param.is_floating_point() for param in params),
        "tensors": len(params),
        "bytes": sum(param.numel() * param.element_size() for param in params),
    }
