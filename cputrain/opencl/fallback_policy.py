"""Policy: run operators that have a kernel on the CPU too where they lie between CPU fallbacks.

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

from cputrain.opencl.alias_info import is_mutating
from cputrain.opencl.device import HostDirty, UploadStats
from cputrain.opencl.table import KERNELS
from cputrain.opencl.tensor import OclTensor
from cputrain.opencl.views import is_view
from cputrain.variables import OCL_FALLBACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MAX_CALLS = 8
"""Maximum number of consecutive kernels between two fallbacks that are considered."""

NUM_TRIALS = 2
"""Timed CPU runs of each call before it is judged: the first one may be slow."""


class CallsSinceUpload:
    """Calls that ran on the device since an upload, and the seconds of the upload."""

    __slots__ = ("calls", "upload_s")

    def __init__(self, calls: tuple[Any, ...], upload_s: float) -> None:
        self.calls, self.upload_s = calls, upload_s


class CallSequence:
    """Calls between an upload and a download, with the cost of both and of the CPU path."""

    def __init__(self, calls: tuple[Any, ...], transfer_s: float) -> None:
        self.calls = calls
        self.transfer_s = transfer_s
        """Seconds of the upload and the download."""
        self._cpu_times: dict[Any, list[float]] = {call: [] for call in calls}

    def record_cpu_time(self, call: Any, elapsed_s: float) -> None:
        """Record the seconds that a call took on the CPU."""
        self._cpu_times[call].append(elapsed_s)

    def should_use_cpu(self, call: Any) -> bool:
        """Return whether to run a call on the CPU: to time it, or as all calls are faster there."""
        times = self._cpu_times[call]
        if len(times) < NUM_TRIALS:
            return True
        return (
            sum(min(call_times) for call_times in self._cpu_times.values() if call_times)
            < self.transfer_s
        )


_sequences: dict[Any, CallSequence] = {}
"""Sequence of calls by the key of each of its calls."""

MAX_ENTRIES = 1 << 12
"""Maximum number of calls in `_sequences`, which is cleared beyond."""


def record_download(since_upload: CallsSinceUpload, download_s: float) -> None:
    """Record that a result of these calls was downloaded, in `download_s` seconds."""
    transfer_s = since_upload.upload_s + download_s
    existing = _sequences.get(since_upload.calls[0])
    if existing is not None and existing.calls == since_upload.calls:
        existing.transfer_s = min(existing.transfer_s, transfer_s)
        return
    if len(_sequences) > MAX_ENTRIES:
        _sequences.clear()
    sequence = CallSequence(since_upload.calls, transfer_s)
    for call in since_upload.calls:
        _sequences[call] = sequence


def run_by_policy(
    run_on_device: Callable[[], Any], run_on_cpu: Callable[[], Any], func: Any, call: Any,
    tensors: Sequence[OclTensor],
) -> Any:  # fmt: skip
    """Run an operator on the device or the CPU, whichever the policy chooses; return its result."""
    if not _can_run_on_cpu(func):
        return run_on_device()
    memories = [item.memory for item in tensors]
    is_host_dirty = any(type(item) is HostDirty for item in memories)
    sequence = _sequences.get(call) if is_host_dirty else None
    if (
        sequence is not None
        and os.environ.get(OCL_FALLBACK) not in ("needed", "error")
        and not torch.are_deterministic_algorithms_enabled()  # timings must not change results
        and not (is_mutating(func) and any(type(item) is not HostDirty for item in memories))
        and sequence.should_use_cpu(call)
    ):
        start_s = time.perf_counter()
        result = run_on_cpu()
        sequence.record_cpu_time(call, time.perf_counter() - start_s)
        return result
    earlier = [item.calls_since_upload for item in memories if item.calls_since_upload is not None]
    upload_s_before = UploadStats.upload_s
    result = run_on_device()
    if is_host_dirty or earlier:
        calls = max((item.calls for item in earlier), key=len, default=())
        transfer_s = UploadStats.upload_s - upload_s_before + sum(item.upload_s for item in earlier)
        extended = CallsSinceUpload((*calls, call), transfer_s) if len(calls) < MAX_CALLS else None
        for item in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(item, OclTensor) and type(item.memory) is not HostDirty:
                item.memory.calls_since_upload = extended
    return result


@cache
def _can_run_on_cpu(func: Any) -> bool:
    """Return whether an operator with a kernel may run on the CPU instead.

    Excluded are random operators, as the device has its own generator, operators that move tensors
    or return views, and operators without a CPU kernel.
    """
    return (
        func in KERNELS
        and torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")
        and not is_view(func)
        and torch.Tag.nondeterministic_seeded not in func.tags
        and func.name() not in TRANSFER_OPERATORS
        and not any(argument.name == "device" for argument in func._schema.arguments)
    )


TRANSFER_OPERATORS = {"aten::copy_", "aten::_local_scalar_dense", "aten::resize_", "aten::detach"}
"""Operators that move or reinterpret data, which the policy never runs on the CPU."""
