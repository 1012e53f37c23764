"""Policy: run operators with a kernel on the CPU if they lie between CPU fallbacks.

Results of a fallback stay on the host until a kernel needs them. If the results of that kernel are
needed on the host soon after, both transfers are overhead of the kernels in between. The transfers
are timed, and so are the same calls on the CPU when they recur; then the faster path is chosen.
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
"""Environment variable; "needed" and "error" disable the policy."""

LONGEST = 8
"""Maximum number of consecutive kernels between two fallbacks that are considered."""

TRIES = 2
"""Timed CPU runs of each call before it is judged: the first one may be slow."""


class Regime:
    """Calls that ran on the device since an upload, and the seconds of the upload."""

    __slots__ = ("calls", "seconds")

    def __init__(self, calls: tuple[Any, ...], seconds: float) -> None:
        self.calls, self.seconds = calls, seconds


class Placement:
    """Calls between an upload and a download, with the cost of both and of the CPU path."""

    def __init__(self, calls: tuple[Any, ...], seconds: float) -> None:
        self.calls = calls
        self.there = seconds
        """Seconds of the upload and the download."""
        self._here: dict[Any, list[float]] = {one: [] for one in calls}

    def took(self, call: Any, seconds: float) -> None:
        """Record the seconds that a call took on the CPU."""
        self._here[call].append(seconds)

    def is_worth_it(self, call: Any) -> bool:
        """Return whether to run a call on the CPU: to time it, or because all are faster there."""
        took = self._here[call]
        if len(took) < TRIES:
            return True
        return sum(min(one) for one in self._here.values() if one) < self.there


_ways: dict[Any, Placement] = {}
"""Placement by call key."""

MOST = 1 << 12


def came_back(passage: Regime, seconds: float) -> None:
    """Record that a result of these calls was downloaded, in `seconds`."""
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
    """Run an operator on the device or the CPU, whichever the policy chooses; return its result."""
    if not _may_be_chosen(func):
        return by_device()
    memories = [one.memory for one in tensors]
    waits = any(type(one) is HostDirty for one in memories)
    way = _ways.get(call) if waits else None
    if (
        way is not None
        and os.environ.get(VARIABLE) not in ("needed", "error")
        and not torch.are_deterministic_algorithms_enabled()  # timings must not change results
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
    """Return whether an operator with a kernel may run on the CPU instead.

    Not random operators (the device has its own generator), nor those that move tensors or are
    views, nor those without a CPU kernel.
    """
    return (
        func in KERNELS
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")
        and not is_view(func)
        and torch.Tag.nondeterministic_seeded not in func.tags
        and func.name() not in MOVING
        and not any(one.name == "device" for one in func._schema.arguments)
    )


MOVING = {"aten::copy_", "aten::_local_scalar_dense", "aten::resize_", "aten::detach"}
