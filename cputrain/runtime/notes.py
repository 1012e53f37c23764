"""Notes at the end of a run, for which a measurement may find faster settings.

Operators of a small network have too little work for many threads, which wait for one another.
Which number is fastest is a matter of measuring. A run of more than a minute that was never
measured is told how.
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

LONG_S = 60.0
"""Seconds from which a run is long enough to be measured."""

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
        register_optimizer_step_post_hook(self._after_step)

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
        if len(self._times) == MAX_STEPS:
            return  # to remove a hook within a hook would break torch's loop over all of them
        now = time.perf_counter()
        if self._last:
            self._times.append(now - self._last)
        self._last = now


class UntunedRun:
    """A run by rules alone: whether it trains, and for how long."""

    def __init__(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._started_at = time.monotonic()
        self._trains = False
        never_compile(UntunedRun._after_step)
        register_optimizer_step_post_hook(self._after_step)

    def describe(self) -> str:
        """Return the note; "" if the run was short, or trained nothing."""
        if not self._trains or time.monotonic() - self._started_at < LONG_S:
            return ""
        return (
            "this script was never measured: cputrain launch --learn does so while it trains, and "
            "cputrain tune before; either may find faster settings"
        )

    def _after_step(self, *_: object) -> None:
        self._trains = True
