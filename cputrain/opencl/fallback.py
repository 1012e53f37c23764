"""CPU fallback: run operators without OpenCL kernel on the CPU, and record their cost."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter

import numpy as np
import torch
from torch.utils import _pytree as tree

from cputrain.opencl.alias_info import UNMARKED
from cputrain.opencl.fallback_policy import VARIABLE, came_back
from cputrain.opencl.shapes import contiguous, is_dense
from cputrain.opencl.tensor import (
    OclTensor,
    fill,
    form_of,
    index_of,
    made,
    on_base,
    on_host,
    read,
    reformed,
    resized,
)
from cputrain.opencl.trace import cannot_be_repeated
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device, Memory


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
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[str, Fallback] = {}


_counts = _Counts()


def fallbacks() -> list[Fallback]:
    """Return the operators that ran on the CPU since the last reset, the slowest first."""
    with _counts.lock:
        found = list(_counts.of.values())
    return sorted(found, key=lambda one: -one.seconds)


class Told:
    """The fallbacks' entry in the summary that is printed at the end of a launch."""

    def describe(self) -> str:
        """Return how many operators fell back, and the slowest; empty if none did."""
        found = fallbacks()
        if not found:
            return ""
        shown = ", ".join(
            f"{one.operator.split('.')[1]} ({one.calls} calls, {one.seconds * 1e3:.3g} ms)"
            for one in found[:SHOWN]
        )
        many = "operators" if len(found) > 1 else "operator"
        more = ", …" if len(found) > SHOWN else ""
        chosen = sum(one.chosen for one in found)
        end = f"; {chosen} calls were chosen for it, between others that it did" if chosen else ""
        return f"{len(found)} {many} done by the CPU in the place of OpenCL: {shown}{more}{end}"

    def undo(self) -> None:
        """Do nothing: the device stays registered."""


SHOWN = 3
"""Maximum number of operators listed in the summary."""


def reset_fallbacks() -> None:
    """Clear the statistics of fallbacks."""
    with _counts.lock:
        _counts.of.clear()


def _count(func: Any, seconds: float, moved: int, *, chosen: bool) -> None:
    name = str(func)
    none = Fallback(operator=name, calls=0, seconds=0.0, moved_bytes=0, chosen=0)
    with _counts.lock:
        one = _counts.of.get(name, none)
        _counts.of[name] = one.replace(
            calls=one.calls + 1, seconds=one.seconds + seconds,
            moved_bytes=one.moved_bytes + moved, chosen=one.chosen + chosen,
        )  # fmt: skip


def is_chosen(device: Device) -> bool:
    """Return whether operators with a kernel may run on the CPU where torch is faster.

    True for a device that is the CPU: the memory is the same, torch's kernels are much faster.
    """
    return device.is_cpu and os.environ.get(VARIABLE) not in ("needed", "error")


def on_cpu(func: Any, args: Any, kwargs: Any, *, chosen: bool = False) -> Any:
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
    if os.environ.get(VARIABLE) == "error":
        raise NotImplementedError(
            f"{func} has no OpenCL kernel, and {VARIABLE}=error forbids the CPU"
        )
    cannot_be_repeated()
    begin = time.perf_counter()
    tensors = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, OclTensor)]
    index = next((one.memory.device.index for one in tensors), index_of(kwargs.get("device")))
    memories = {id(one.memory): one.memory for one in tensors}  # tensors may share memory
    for device in {one.device for one in memories.values() if one.copy is None}:
        device.finish()
    hosts = {key: _host_of(one) for key, one in memories.items()}
    moved = sum(one.size for one in memories.values() if one.host is None and one.copy is None)
    written = _written(func, args, kwargs)
    # torch may resize an `out=` tensor, but not device memory: compute into a separate CPU tensor
    # and write it back. If other arguments share its memory, clone the memory for all of them, as
    # torch checks for overlap
    uses = Counter(id(one.memory) for one in tensors)
    shared = {id(one.memory) for one in written.outputs if uses[id(one.memory)] > 1}
    bases = {key: torch.from_numpy(host[: memories[key].used]) for key, host in hosts.items()}
    bases.update((key, bases[key].clone()) for key in shared)
    outputs = {
        id(one): torch.empty_strided(one.size(), one.stride(), dtype=one.dtype)
        for one in written.outputs
        if id(one.memory) not in shared
    }
    there = {id(one): on_base(one, bases[id(one.memory)]) for one in tensors}
    there.update(outputs)
    known = {id(there[id(one)]): one for one in tensors}
    bare_args = tree.tree_map_only(OclTensor, lambda one: there[id(one)], args)
    bare = tree.tree_map_only(OclTensor, lambda one: there[id(one)], kwargs)
    goes_to = None if bare.get("device") is None else torch.device(bare["device"])
    if goes_to is not None:
        bare["device"] = "cpu"
        index = goes_to.index or 0
    found = func(*bare_args, **bare)
    for key in shared:
        torch.from_numpy(hosts[key])[: len(bases[key])].copy_(bases[key])
        _keep(memories[key], hosts[key])
    for one in written.in_place:
        if form_of(there[id(one)]) != form_of(one):
            reformed(one, there[id(one)])
    for one in written.in_place:
        _keep(one.memory, hosts[id(one.memory)])
    for one in written.outputs:
        _write_back(one, there[id(one)])
    if goes_to is not None and goes_to.type not in ("cpu", "ocl"):
        found = tree.tree_map_only(torch.Tensor, lambda one: one.to(goes_to), found)
    elif goes_to is None or goes_to.type == "ocl":
        found = tree.tree_map_only(torch.Tensor, lambda one: _back(one, known, index), found)
    _count(func, time.perf_counter() - begin, moved, chosen=chosen)
    return found


def _write_back(one: OclTensor, value: torch.Tensor) -> None:
    """Copy size, strides and values of a CPU result to an `out=` tensor."""
    if form_of(value)[:2] != form_of(one)[:2]:
        resized(one, value.size(), value.stride())
    # write each element of an expanded tensor once
    size = [n if step else min(n, 1) for n, step in zip(one.size(), one.stride(), strict=True)]
    fill(
        OclTensor(one.memory, size, one.stride(), int(one.storage_offset()), one.dtype),
        value.as_strided(size, value.stride(), value.storage_offset()),
    )


def _host_of(memory: Memory) -> Any:
    """Return a memory's bytes; attribute the time to the kernels since its upload."""
    begin = time.perf_counter()
    host = read(memory)
    if memory.passage is not None:
        came_back(memory.passage, time.perf_counter() - begin)
    return host


def _keep(memory: Memory, host: Any) -> None:
    """Mark memory that the CPU wrote as host-dirty; nothing to do if it is shared."""
    if memory.host is None:
        memory.device.keep_on_host(memory, host)


class _Written(Record):
    """Tensors that an operator writes to."""

    in_place: list[OclTensor]
    """Tensors that are modified in place: their previous values matter."""

    outputs: list[OclTensor]
    """`out=` tensors, which the operator may resize."""


def _written(func: Any, args: Any, kwargs: Any) -> _Written:
    found: tuple[list[OclTensor], list[OclTensor]] = ([], [])
    arguments = func._schema.arguments
    given = list(zip(arguments, args, strict=False))
    given += [(one, kwargs[one.name]) for one in arguments if one.name in kwargs]
    for argument, value in given:
        if argument.alias_info is not None and argument.alias_info.is_write:
            each = value if isinstance(value, (list, tuple)) else [value]
            found[argument.kwarg_only].extend(one for one in each if isinstance(one, OclTensor))
    for number in UNMARKED.get(func, ()):
        if isinstance(args[number], OclTensor):
            found[0].append(args[number])
    return _Written(in_place=found[0], outputs=found[1])


def _back(one: torch.Tensor, known: dict[int, OclTensor], index: int) -> Any:
    """Return a CPU result as a device tensor: the argument it stands for, or a new one."""
    if one.layout is not torch.strided:
        raise NotImplementedError(f"{one.layout} is for tensors on the CPU: call .cpu() before")
    if id(one) in known:
        return known[id(one)]
    return sent(one, index)


def sent(value: torch.Tensor, index: int) -> OclTensor:
    """Copy a CPU tensor to a device, keeping dense strides; others become contiguous."""
    value = value.resolve_conj().resolve_neg()
    stride = value.stride() if is_dense(value.size(), value.stride()) else contiguous(value.size())
    there = made(index, value.size(), stride, value.dtype)
    memory = there.memory
    if memory.host is None:
        _keep(memory, np.empty(memory.size, np.uint8))
        on_host(there, memory.copy).copy_(value)
    else:
        fill(there, value)
    return there
