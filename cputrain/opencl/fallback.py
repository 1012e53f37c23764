"""CPU fallback: run operators without OpenCL kernel on the CPU, and record their cost."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import numpy as np
import torch
from torch.utils import _pytree as tree

from cputrain.counting import counted
from cputrain.opencl.alias_info import UNMARKED
from cputrain.opencl.fallback_policy import record_download
from cputrain.opencl.graphs.capture import refuse
from cputrain.opencl.shapes import contiguous, is_dense
from cputrain.opencl.tensor import (
    OclTensor,
    device_index_of,
    empty,
    fill,
    metadata_of,
    on_host,
    read,
    resize_in_place,
    set_metadata,
    view_of_bytes,
)
from cputrain.opencl.trace import break_trace
from cputrain.record import Record
from cputrain.variables import OCL_FALLBACK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device, DeviceMemory


class Fallback(Record):
    """Statistics of an operator that ran on the CPU."""

    operator: str
    """Name of the overload, as "aten.cumsum.default"."""

    calls: int
    """Number of calls."""

    seconds: float
    """Total time: waiting for the device, copying to the host, and computing."""

    moved_bytes: int
    """Bytes copied to the host; 0 with shared memory. Later uploads are not counted."""

    chosen: int
    """Calls that have a kernel but ran on the CPU because that was faster between fallbacks."""


class _Counts:
    """Statistics of fallbacks by operator, with their lock."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.by_operator: dict[str, Fallback] = {}


_counts = _Counts()


def fallbacks() -> list[Fallback]:
    """Return the operators that ran on the CPU since the last reset, the slowest first."""
    with _counts.lock:
        records = list(_counts.by_operator.values())
    return sorted(records, key=lambda record: -record.seconds)


class FallbackSummary:
    """The fallbacks' entry in the summary that is printed at the end of a launch."""

    def describe(self) -> str:
        """Return how many operators fell back, and the slowest; empty if none did."""
        records = fallbacks()
        if not records:
            return ""
        listed = ", ".join(
            f"{record.operator.split('.')[1]} "
            f"({counted(record.calls, 'call')}, {record.seconds * 1e3:.3g} ms)"
            for record in records[:MAX_LISTED]
        )
        noun = "operators" if len(records) > 1 else "operator"
        more = ", …" if len(records) > MAX_LISTED else ""
        num_chosen = sum(record.chosen for record in records)
        end = (
            f"; {num_chosen} of these calls have a kernel, but lie between fallbacks"
            if num_chosen
            else ""
        )
        return f"{len(records)} {noun} ran on the CPU instead of OpenCL: {listed}{more}{end}"

    def undo(self) -> None:
        """Do nothing: the device stays registered."""


MAX_LISTED = 3
"""Maximum number of operators listed in the summary."""


def reset_fallbacks() -> None:
    """Clear the statistics of fallbacks."""
    with _counts.lock:
        _counts.by_operator.clear()


def _record_fallback(func: Any, seconds: float, num_bytes: int, *, chosen: bool) -> None:
    name = str(func)
    zero = Fallback(operator=name, calls=0, seconds=0.0, moved_bytes=0, chosen=0)
    with _counts.lock:
        record = _counts.by_operator.get(name, zero)
        _counts.by_operator[name] = record.replace(
            calls=record.calls + 1, seconds=record.seconds + seconds,
            moved_bytes=record.moved_bytes + num_bytes, chosen=record.chosen + chosen,
        )  # fmt: skip


def prefers_cpu(device: Device) -> bool:
    """Return whether operators with a kernel may run on the CPU where torch is faster.

    True for a device that is the CPU: the memory is the same, torch's kernels are much faster.
    """
    return device.is_cpu and os.environ.get(OCL_FALLBACK) not in ("needed", "error")


def run_on_cpu(func: Any, args: Any, kwargs: Any, *, chosen: bool = False) -> Any:
    """Run an operator on the CPU and return its result.

    Tensors are read from the same memory if it is shared, else from host copies; what was written
    stays on the host (host-dirty) until a kernel needs it.

    Args:
        func: Operator overload.
        args: Positional arguments of the operator.
        kwargs: Keyword arguments of the operator.
        chosen: Whether the operator has a kernel, but the fallback policy prefers the CPU.

    Raises:
        NotImplementedError: CPUTRAIN_OCL_FALLBACK=error forbids fallbacks.
    """
    if os.environ.get(OCL_FALLBACK) == "error":
        raise NotImplementedError(
            f"{func} has no OpenCL kernel, and {OCL_FALLBACK}=error forbids the CPU"
        )
    break_trace()
    refuse(f"{func} cannot run on the CPU")
    begin = time.perf_counter()
    tensors = [item for item in tree.tree_leaves((args, kwargs)) if isinstance(item, OclTensor)]
    index = next(
        (item.memory.device.index for item in tensors), device_index_of(kwargs.get("device"))
    )
    memories = {id(item.memory): item.memory for item in tensors}  # tensors may share memory
    for device in {item.device for item in memories.values() if item.copy is None}:
        device.finish()
    hosts = {key: _download(item) for key, item in memories.items()}
    moved_bytes = sum(
        item.size for item in memories.values() if item.host is None and item.copy is None
    )
    mutated = _mutated_tensors(func, args, kwargs)
    # torch may resize an `out=` tensor, but not device memory: compute into a separate CPU tensor
    # and write it back. If other arguments share its memory, clone the memory for all of them, as
    # torch checks for overlap
    uses = Counter(id(item.memory) for item in tensors)
    shared_ids = {id(item.memory) for item in mutated.outputs if uses[id(item.memory)] > 1}
    bases = {key: torch.from_numpy(host[: memories[key].used]) for key, host in hosts.items()}
    bases.update((key, bases[key].clone()) for key in shared_ids)
    outputs = {
        id(item): torch.empty_strided(item.size(), item.stride(), dtype=item.dtype)
        for item in mutated.outputs
        if id(item.memory) not in shared_ids
    }
    cpu_tensors = {id(item): view_of_bytes(item, bases[id(item.memory)]) for item in tensors}
    cpu_tensors.update(outputs)
    originals = {id(cpu_tensors[id(item)]): item for item in tensors}
    cpu_args = tree.tree_map_only(OclTensor, lambda item: cpu_tensors[id(item)], args)
    cpu_kwargs = tree.tree_map_only(OclTensor, lambda item: cpu_tensors[id(item)], kwargs)
    target_device = None if cpu_kwargs.get("device") is None else torch.device(cpu_kwargs["device"])
    if target_device is not None:
        cpu_kwargs["device"] = "cpu"
        index = target_device.index or 0
    result = func(*cpu_args, **cpu_kwargs)
    for key in shared_ids:
        torch.from_numpy(hosts[key])[: len(bases[key])].copy_(bases[key])
        _mark_host_dirty(memories[key], hosts[key])
    for item in mutated.in_place:
        if metadata_of(cpu_tensors[id(item)]) != metadata_of(item):
            set_metadata(item, cpu_tensors[id(item)])
    for item in mutated.in_place:
        _mark_host_dirty(item.memory, hosts[id(item.memory)])
    for item in mutated.outputs:
        _write_back(item, cpu_tensors[id(item)])
    if target_device is not None and target_device.type not in ("cpu", "ocl"):
        result = tree.tree_map_only(torch.Tensor, lambda item: item.to(target_device), result)
    elif target_device is None or target_device.type == "ocl":
        result = tree.tree_map_only(
            torch.Tensor, lambda item: _result_to_device(item, originals, index), result
        )
    _record_fallback(func, time.perf_counter() - begin, moved_bytes, chosen=chosen)
    return result


def _write_back(output: OclTensor, value: torch.Tensor) -> None:
    """Copy size, strides and values of a CPU result to an `out=` tensor."""
    if metadata_of(value)[:2] != metadata_of(output)[:2]:
        resize_in_place(output, value.size(), value.stride())
    # write each element of an expanded tensor once
    size = [
        length if stride else min(length, 1)
        for length, stride in zip(output.size(), output.stride(), strict=True)
    ]
    fill(
        OclTensor(output.memory, size, output.stride(), int(output.storage_offset()), output.dtype),
        value.as_strided(size, value.stride(), value.storage_offset()),
    )


def _download(memory: DeviceMemory) -> Any:
    """Return a memory's bytes; attribute the time to the kernels since its upload."""
    begin = time.perf_counter()
    host = read(memory)
    if memory.calls_since_upload is not None:
        record_download(memory.calls_since_upload, time.perf_counter() - begin)
    return host


def _mark_host_dirty(memory: DeviceMemory, host: Any) -> None:
    """Mark memory that the CPU wrote as host-dirty; nothing to do if it is shared."""
    if memory.host is None:
        memory.device.mark_host_dirty(memory, host)


class _MutatedTensors(Record):
    """Tensors that an operator writes to."""

    in_place: list[OclTensor]
    """Tensors that are modified in place: their previous values matter."""

    outputs: list[OclTensor]
    """`out=` tensors, which the operator may resize."""


def _mutated_tensors(func: Any, args: Any, kwargs: Any) -> _MutatedTensors:
    by_kind: tuple[list[OclTensor], list[OclTensor]] = ([], [])
    arguments = func._schema.arguments
    pairs = list(zip(arguments, args, strict=False))
    pairs += [(item, kwargs[item.name]) for item in arguments if item.name in kwargs]
    for argument, value in pairs:
        if argument.alias_info is not None and argument.alias_info.is_write:
            values = value if isinstance(value, (list, tuple)) else [value]
            by_kind[argument.kwarg_only].extend(
                item for item in values if isinstance(item, OclTensor)
            )
    for index in UNMARKED.get(func, ()):
        if isinstance(args[index], OclTensor):
            by_kind[0].append(args[index])
    return _MutatedTensors(in_place=by_kind[0], outputs=by_kind[1])


def _result_to_device(tensor: torch.Tensor, originals: dict[int, OclTensor], index: int) -> Any:
    """Return a CPU result as a device tensor: the argument that it stands for, or a new tensor."""
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"{tensor.layout} tensors are supported on the CPU only: call .cpu() first"
        )
    if id(tensor) in originals:
        return originals[id(tensor)]
    return copy_to_device(tensor, index)


def copy_to_device(value: torch.Tensor, index: int) -> OclTensor:
    """Copy a CPU tensor to a device, keeping dense strides; others become contiguous."""
    value = value.resolve_conj().resolve_neg()
    stride = value.stride() if is_dense(value.size(), value.stride()) else contiguous(value.size())
    result = empty(index, value.size(), stride, value.dtype)
    memory = result.memory
    if memory.host is None:
        _mark_host_dirty(memory, np.empty(memory.size, np.uint8))
        on_host(result, memory.copy).copy_(value)
    else:
        fill(result, value)
    return result
