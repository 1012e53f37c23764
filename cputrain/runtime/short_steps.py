"""Note at the end of a run whose steps are short for its many threads: fewer may be faster.

Operators of a small network have too little work for many threads, which wait for one another.
Which number is fastest is a matter of measuring; `cputrain tune` does it.
"""

from __future__ import annotations

import time
from statistics import median

from cputrain.runtime.patching import never_compile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

MANY_THREADS = 16
"""Least number of threads of which fewer may be faster."""

SHORT_S = 0.05
"""Seconds below which a step is short."""

MIN_STEPS = 20
"""Least number of steps of which the median is taken."""

MAX_STEPS = 200
"""Number of steps after which no more are timed."""


class ShortSteps:
    """Times of optimizer steps, until there are enough.

    Args:
        torch: The module.
        num_threads: Number of intra-op threads of the plan.
    """

    def __init__(self, torch: ModuleType, num_threads: int) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._torch = torch
        self._num_threads = num_threads
        self._last = 0.0
        self._times: list[float] = []
        never_compile(ShortSteps._after_step)
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def describe(self) -> str:
        """Return the note; "" if steps are long, few, or have another number of threads."""
        if len(self._times) < MIN_STEPS or self._torch.get_num_threads() != self._num_threads:
            return ""
        step_s = median(self._times)
        if step_s >= SHORT_S:
            return ""
        return (
            f"steps of {step_s * 1e3:.2g} ms are short for {self._num_threads} threads; fewer may "
            "be faster, which cputrain tune finds out"
        )

    def _after_step(self, *_: object) -> None:
        now = time.perf_counter()
        if self._last:
            self._times.append(now - self._last)
        self._last = now
        if len(self._times) >= MAX_STEPS:
            self._hook.remove()
