"""Record a trial of `cputrain tune`: time steps, record losses, and end the process in time.

The recorder uses torch's extension points: the optimizer post-step hook,
`torch.autograd.backward`, and the iterators of DataLoaders.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import time

from cputrain import variables
from cputrain.runtime.loader_clock import LoaderClock
from cputrain.runtime.patching import Patch, never_compile
from cputrain.runtime.trial_document import TrialDocument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MAX_LOSSES = 100
"""Largest number of losses that are recorded."""

FEW = 2
"""Smallest number of warm-up steps and of timed steps, however slow they are."""

TIME_FACTOR = 4
"""Multiple of the requested time for which a trial may continue to collect losses."""

NOISE = 1e-5
"""Relative noise of gradients, slightly above the effect of another summation order."""


def watch(torch: ModuleType) -> None:
    """Start the recorder that the environment variable CPUTRAIN_TRIAL requests, if it is set."""
    document = os.environ.pop(variables.TRIAL, "")
    if not document:
        return
    arguments = json.loads(document)
    if "verify" in arguments:
        from cputrain.runtime.verifying import Verifier

        Verifier(torch, **arguments)
    elif "stamps" in arguments:
        from cputrain.runtime.stamping import StampRecorder

        StampRecorder(torch, **arguments)
    elif "memory" in arguments:
        from cputrain.memory.recorder import MemoryRecorder

        MemoryRecorder(**arguments)
    elif "diagnose" in arguments:
        from cputrain.runtime.diagnosing import Observer

        Observer(torch, **arguments)
    else:
        StepRecorder(torch, **arguments)


class StepRecorder:
    """Records step times, loader waits and losses, and writes them when the run ends.

    Args:
        fd: File descriptor that the JSON document is written to.
        warmup: Optimizer steps before timing begins.
        steps: Largest number of timed steps.
        seconds: Time after which fewer steps are enough.
        losses: Number of losses to record.
        begun: `time.perf_counter()` at which the process was started.
        disturbed: Whether to add noise to gradients, to measure the effect of rounding on losses.
    """

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
        self._document = TrialDocument(fd)
        self._warmup = warmup
        self._max_timed = steps
        self._seconds = seconds
        self._num_losses_wanted = losses
        self._started_at = begun
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

        register_optimizer_step_post_hook(self._after_step)
        never_compile(StepRecorder._after_step)
        if disturbed:
            register_optimizer_step_pre_hook(_noise_hook(torch))
        self._record_losses(torch)
        self._detect_attention(torch)
        atexit.register(self._write, "ended")

    def _after_step(self, optimizer: Any, *_: object) -> None:
        if id(optimizer) not in self._optimizers:
            self._optimizers.add(id(optimizer))
            groups = optimizer.param_groups
            if any(param.dim() in (4, 5) for group in groups for param in group["params"]):
                self._uses.add("convolution")
        self._times.append(time.perf_counter())
        self._waits.append(self._loaders.seconds)
        if self._is_done():
            self._write("enough")
            end_process()

    def _is_done(self) -> bool:
        count, now = len(self._times), self._times[-1]
        min_steps = FEW * len(self._optimizers)
        if min_steps <= count < self._warmup and now - self._times[0] > self._seconds / 2:
            self._warmup = count  # slow steps: end the warm-up early
        num_timed = count - self._warmup
        if num_timed < min_steps:
            return False
        seconds = now - self._times[self._warmup - 1]
        if num_timed >= self._max_timed or seconds >= TIME_FACTOR * self._seconds:
            return True
        return seconds >= self._seconds and len(self._losses) >= self._num_losses_wanted

    def _record_losses(self, torch: ModuleType) -> None:
        autograd: Any = torch.autograd
        original = autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if len(self._losses) < MAX_LOSSES:
                self._losses.append(_loss_value(torch, tensors))
            return original(tensors, *args, **kwargs)

        Patch(autograd, "backward", backward)

    def _detect_attention(self, torch: ModuleType) -> None:
        from cputrain.runtime.replaced_builtin import replace

        def note(*_: object) -> None:
            self._uses.add("attention")

        places = (torch._C._nn, torch.nn.functional)
        replace(places, "scaled_dot_product_attention", note)

    def _write(self, reason: str) -> None:
        if not self._document.is_due:
            return
        document = {
            "how": reason,
            "before_timed": self._seconds_before_timed(),
            "times": self._times,
            "waits": self._waits,
            "losses": self._losses,
            "optimizers": len(self._optimizers),
            "uses": sorted(self._uses | ({"loader"} if self._loaders.kinds else set())),
            "warmup": self._warmup,
            "peak_rss_bytes": _peak_rss_bytes(),
        }
        self._document.write(document)

    def _seconds_before_timed(self) -> float | None:
        """Return the seconds before timed steps (loading, compiling, warm-up); None without any."""
        if len(self._times) < self._warmup:
            return None
        return self._times[self._warmup - 1] - self._started_at


def end_process() -> None:
    """Exit at once with status 0, without running the script's exit handlers."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os._exit(0)


def _noise_hook(torch: ModuleType) -> Callable[..., None]:
    """Return an optimizer pre-step hook that adds noise of rounding size to gradients."""
    generator = torch.Generator().manual_seed(1)

    def add_noise(optimizer: Any, *_: object) -> None:
        with torch.no_grad():
            for param in (tensor for group in optimizer.param_groups for tensor in group["params"]):
                grad = param.grad
                if grad is None or grad.is_sparse or not grad.is_cpu or grad.is_complex():
                    continue
                noise = torch.randn(grad.shape, generator=generator).to(grad.dtype)
                rms = float(grad.square().mean().sqrt())
                grad.add_(noise, alpha=NOISE * rms)

    return add_noise


def seed(torch: ModuleType) -> None:
    """Seed torch, random and NumPy, so that every trial has the same random numbers."""
    import random

    torch.manual_seed(0)
    random.seed(0)
    if "numpy" in sys.modules:
        import numpy as np

        np.random.seed(0)


def _loss_value(torch: ModuleType, tensors: Any) -> float:
    """Return the sum of the tensors that backward starts from."""
    losses = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    with torch.no_grad():
        return sum(float(loss.detach().double().sum()) for loss in losses)


def _peak_rss_bytes() -> int | None:
    """Return the peak resident set of the process; None on Windows."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
