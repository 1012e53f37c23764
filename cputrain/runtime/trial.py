"""Watches a trial of `cputrain tune`: times its steps, writes down its losses, ends it in time.

Everything is seen through torch's own seams: the hook behind every optimizer's step, the function
behind every `backward()`, and the iterators of DataLoaders.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time

from cputrain.runtime.loader_clock import LoaderClock
from cputrain.runtime.patching import Patch, never_compile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

VARIABLE = "CPUTRAIN_TRIAL"
"""What is asked for, as JSON: a descriptor to tell the result to, and how long to go on."""

LOSSES = 100
"""How many are written down."""

FEW = 2
"""Steps that are timed at least, and steps of warm-up, however slow."""

PATIENCE = 4
"""How many times as long as was asked for a trial goes on for the losses that are wanted."""

ROUNDING = 1e-5
"""Relative noise, somewhat more than another order of additions makes in the sums of a gradient."""


def watch(torch: ModuleType) -> None:
    """Start watching, if this process is on trial; those that it starts are not."""
    given = os.environ.pop(VARIABLE, "")
    if not given:
        return
    asked = json.loads(given)
    if "verify" in asked:
        from cputrain.runtime.verifying import Verifier

        Verifier(torch, **asked)
    elif "diagnose" in asked:
        from cputrain.runtime.diagnosing import Observer

        Observer(torch, **asked)
    else:
        Recorder(torch, **asked)


class Recorder:
    """What was seen so far."""

    def __init__(
        self,
        torch: ModuleType,
        *,
        fd: int,
        warmup: int,
        steps: int,
        seconds: float,
        losses: int,
        begun: float,
        disturbed: bool,
    ) -> None:
        self._fd = fd
        self._warmup = warmup
        self._most = steps
        self._seconds = seconds
        self._wanted = losses
        self._begun = begun
        self._owner = os.getpid()
        self._times: list[float] = []
        self._waits: list[float] = []
        self._losses: list[float] = []
        self._optimizers: set[int] = set()
        self._uses: set[str] = set()
        self._loaders = LoaderClock()
        seed(torch)
        from torch.optim.optimizer import (
            register_optimizer_step_post_hook,
            register_optimizer_step_pre_hook,
        )

        register_optimizer_step_post_hook(self._stepped)
        never_compile(Recorder._stepped)
        if disturbed:
            register_optimizer_step_pre_hook(_disturbance(torch))
        self._hear_losses(torch)
        self._see_attention(torch)
        atexit.register(self._tell, "ended")

    def _stepped(self, optimizer: Any, *_: object) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers.add(id(optimizer))
            groups = optimizer.param_groups
            if any(weight.dim() in (4, 5) for group in groups for weight in group["params"]):
                self._uses.add("convolution")
        self._times.append(time.perf_counter())
        self._waits.append(self._loaders.seconds)
        if self._is_enough():
            self._tell("enough")
            end()

    def _is_enough(self) -> bool:
        count, now = len(self._times), self._times[-1]
        few = FEW * len(self._optimizers)
        if few <= count < self._warmup and now - self._times[0] > self._seconds / 2:
            self._warmup = count  # slow steps: rather time a few than warm up for long
        timed = count - self._warmup
        if timed < few:
            return False
        seconds = now - self._times[self._warmup - 1]
        if timed >= self._most or seconds >= PATIENCE * self._seconds:
            return True
        return seconds >= self._seconds and len(self._losses) >= self._wanted

    def _hear_losses(self, torch: ModuleType) -> None:
        autograd: Any = torch.autograd
        own = autograd.backward

        def backward(tensors: Any, *args: Any, **options: Any) -> Any:
            if len(self._losses) < LOSSES:
                self._losses.append(_value(torch, tensors))
            return own(tensors, *args, **options)

        Patch(autograd, "backward", backward)

    def _see_attention(self, torch: ModuleType) -> None:
        place: Any = torch.nn.functional
        own = place.scaled_dot_product_attention

        def attend(*args: Any, **options: Any) -> Any:
            self._uses.add("attention")
            return own(*args, **options)

        Patch(place, "scaled_dot_product_attention", attend)

    def _tell(self, how: str) -> None:
        if os.getpid() != self._owner or self._fd < 0:
            return
        document = {
            "how": how,
            "before_timed": self._before_timed(),
            "times": self._times,
            "waits": self._waits,
            "losses": self._losses,
            "optimizers": len(self._optimizers),
            "uses": sorted(self._uses | ({"loader"} if self._loaders.kinds else set())),
            "warmup": self._warmup,
            "peak_rss_bytes": _peak(),
        }
        fd, self._fd = self._fd, -1
        with open(fd, "w", encoding="utf-8") as file:
            json.dump(document, file)

    def _before_timed(self) -> float | None:
        """Seconds until steps were timed: loading, compiling, warming up."""
        if len(self._times) < self._warmup:
            return None
        return self._times[self._warmup - 1] - self._begun


def end() -> None:
    """At once: what the script does at its end is for a run that got there."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)


def _disturbance(torch: ModuleType) -> Callable[..., None]:
    """Noise in every gradient: how far it goes is what rounding does to this script."""
    generator = torch.Generator().manual_seed(1)

    def disturb(optimizer: Any, *_: object) -> None:
        with torch.no_grad():
            for weight in (one for group in optimizer.param_groups for one in group["params"]):
                slope = weight.grad
                if slope is None or slope.is_sparse or not slope.is_cpu or slope.is_complex():
                    continue
                noise = torch.randn(slope.shape, generator=generator).to(slope.dtype)
                size = float(slope.square().mean().sqrt())
                slope.add_(noise, alpha=ROUNDING * size)

    return disturb


def seed(torch: ModuleType) -> None:
    """The same numbers in every trial, whatever the script does."""
    import random

    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(0)


def _value(torch: ModuleType, tensors: Any) -> float:
    """The loss, or the sum of what backward starts from."""
    each = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    with torch.no_grad():
        return sum(float(one.detach().double().sum()) for one in each)


def _peak() -> int | None:
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
