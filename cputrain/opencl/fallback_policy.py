"""An operator that has a kernel, between others that the CPU does: is the device worth the way?

What the CPU did stays on the host until a kernel wants it. If what kernels make of it is wanted on
the host soon after, the way there and back is a cost of those kernels. It is measured, and so is
what the CPU takes for them when they come again. Then the faster of the two is chosen.
"""

from __future__ import annotations

import os
import time
from functools import cache
from typing import Any

import torch

from cputrain.opencl.alias_info import writes
from cputrain.opencl.device import HostDirty, UploadStats
from cputrain.opencl.table import KERNELS
from cputrain.opencl.tensor import OclTensor
from cputrain.opencl.views import is_view

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VARIABLE = "CPUTRAIN_OCL_FALLBACK"
"""With "needed" or "error", nothing is chosen."""

LONGEST = 8
"""Kernels between two that the CPU does. What is farther away is not between them."""

TRIES = 2
"""Of each on the CPU, before it is judged: the first may be slow."""


class Regime:
    """Calls that were asked of the device with bytes of the host, and what bringing them took."""

    __slots__ = ("calls", "seconds")

    def __init__(self, calls: tuple[Any, ...], seconds: float) -> None:
        self.calls, self.seconds = calls, seconds


class Placement:
    """The same, once the bytes were wanted on the host again: both ways are known."""

    def __init__(self, calls: tuple[Any, ...], seconds: float) -> None:
        self.calls = calls
        self.there = seconds
        """Seconds of bringing bytes to the device and back."""
        self._here: dict[Any, list[float]] = {one: [] for one in calls}

    def took(self, call: Any, seconds: float) -> None:
        """So long, on the CPU."""
        self._here[call].append(seconds)

    def is_worth_it(self, call: Any) -> bool:
        """Whether the CPU does this call: to see what it takes, or because all are faster there."""
        took = self._here[call]
        if len(took) < TRIES:
            return True
        return sum(min(one) for one in self._here.values() if one) < self.there


_ways: dict[Any, Placement] = {}
"""By call."""

MOST = 1 << 12


def came_back(passage: Regime, seconds: float) -> None:
    """What was made on the way is wanted on the host: to bring it there took so long."""
    whole = passage.seconds + seconds
    known = _ways.get(passage.calls[0])
    if known is not None and known.calls == passage.calls:
        known.there = min(known.there, whole)
        return
    if len(_ways) > MOST:
        _ways.clear()
    way = Placement(passage.calls, whole)
    for one in passage.calls:
        _ways[one] = way


def run_between(
    by_device: Callable[[], Any], by_cpu: Callable[[], Any], func: Any, call: Any,
    tensors: Sequence[OclTensor],
) -> Any:  # fmt: skip
    """What the operator gives, by the one or the other."""
    if not _may_be_chosen(func):
        return by_device()
    memories = [one.memory for one in tensors]
    waits = any(type(one) is HostDirty for one in memories)
    way = _ways.get(call) if waits else None
    if (
        way is not None
        and os.environ.get(VARIABLE) not in ("needed", "error")
        and not torch.are_deterministic_algorithms_enabled()  # the same in every run
        and not (writes(func) and any(type(one) is not HostDirty for one in memories))
        and way.is_worth_it(call)
    ):
        begin = time.perf_counter()
        found = by_cpu()
        way.took(call, time.perf_counter() - begin)
        return found
    passages = [one.passage for one in memories if one.passage is not None]
    before = UploadStats.seconds
    found = by_device()
    if waits or passages:
        longest = max((one.calls for one in passages), key=len, default=())
        seconds = UploadStats.seconds - before + sum(one.seconds for one in passages)
        passage = Regime((*longest, call), seconds) if len(longest) < LONGEST else None
        for one in found if isinstance(found, (list, tuple)) else (found,):
            if isinstance(one, OclTensor) and type(one.memory) is not HostDirty:
                one.memory.passage = passage
    return found


@cache
def _may_be_chosen(func: Any) -> bool:
    """Random numbers are the device's own; what moves tensors is not computing; and the CPU has no
    kernel for what torch makes for devices alone."""
    return (
        func in KERNELS
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")
        and not is_view(func)
        and torch.Tag.nondeterministic_seeded not in func.tags
        and func.name() not in MOVING
        and not any(one.name == "device" for one in func._schema.arguments)
    )


MOVING = {"aten::copy_", "aten::_local_scalar_dense", "aten::resize_", "aten::detach"}
