"""An operator without a kernel: the CPU does it, and what that cost is written down."""

from __future__ import annotations

import os
import threading
import time

import torch
from torch.utils import _pytree as tree

from cputrain.opencl.recorded import cannot_be_repeated
from cputrain.opencl.shapes import contiguous, is_dense
from cputrain.opencl.tensor import (
    OclTensor,
    fill,
    form_of,
    index_of,
    made,
    on_host,
    read,
    reformed,
    resized,
    write,
)
from cputrain.opencl.unmarked import UNMARKED
from cputrain.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from cputrain.opencl.device import Device

VARIABLE = "CPUTRAIN_OCL_FALLBACK"
"""For tests of kernels: with "needed", the CPU does only what has none; with "error", nothing."""


class Fallback(Record):
    """An operator that the CPU did."""

    operator: str
    """ "aten.cumsum.default"."""

    calls: int
    """How often."""

    seconds: float
    """In all: waiting for the device, on the CPU, and back."""

    moved_bytes: int
    """To the host and back; none where memory is shared."""


class _Counts:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.of: dict[str, tuple[int, float, int]] = {}


_counts = _Counts()


def fallbacks() -> list[Fallback]:
    """Operators that the CPU did since the last reset, the dearest first."""
    with _counts.lock:
        found = [
            Fallback(operator=name, calls=calls, seconds=seconds, moved_bytes=moved)
            for name, (calls, seconds, moved) in _counts.of.items()
        ]
    return sorted(found, key=lambda one: -one.seconds)


class Told:
    """What stands of it in the line at the end of a launch."""

    def describe(self) -> str:
        """The dearest, and how many there were."""
        found = fallbacks()
        if not found:
            return ""
        shown = ", ".join(
            f"{one.operator.split('.')[1]} ({one.calls} calls, {one.seconds * 1e3:.3g} ms)"
            for one in found[:SHOWN]
        )
        many = "operators" if len(found) > 1 else "operator"
        more = ", …" if len(found) > SHOWN else ""
        return f"{len(found)} {many} done by the CPU in the place of OpenCL: {shown}{more}"

    def undo(self) -> None:
        """It stays."""


SHOWN = 3
"""Operators in that line."""


def reset_fallbacks() -> None:
    """From now on, none was."""
    with _counts.lock:
        _counts.of.clear()


def _count(func: Any, seconds: float, moved: int) -> None:
    with _counts.lock:
        calls, before, bytes_ = _counts.of.get(str(func), (0, 0.0, 0))
        _counts.of[str(func)] = (calls + 1, before + seconds, bytes_ + moved)


def is_chosen(device: Device) -> bool:
    """Whether what has a kernel is done by torch's for the CPU where that is faster.

    It is on a device that is the CPU: the same memory, and many times the speed.
    """
    return device.is_cpu and os.environ.get(VARIABLE) not in ("needed", "error")


def on_cpu(func: Any, args: Any, kwargs: Any) -> Any:
    """What the operator gives, done by the CPU: on the same memory, or on copies of it."""
    if os.environ.get(VARIABLE) == "error":
        raise NotImplementedError(
            f"{func} has no OpenCL kernel, and {VARIABLE}=error forbids the CPU"
        )
    cannot_be_repeated()
    begin = time.perf_counter()
    tensors = [one for one in tree.tree_leaves((args, kwargs)) if isinstance(one, OclTensor)]
    index = next((one.memory.device.index for one in tensors), index_of(kwargs.get("device")))
    for device in {one.memory.device for one in tensors}:
        device.finish()
    hosts = {id(one.memory): read(one.memory) for one in tensors}  # several may be in one
    there = {id(one): on_host(one, hosts[id(one.memory)]) for one in tensors}
    written = _written(func, args, kwargs)
    # an output may be made larger, which its memory cannot; and it may be an input as well
    outputs = {
        id(one): torch.empty_strided(one.size(), one.stride(), dtype=one.dtype)
        for one in written.outputs
    }
    known = {id(there[id(one)]): one for one in tensors}
    known.update((id(outputs[id(one)]), one) for one in written.outputs)
    bare_args = tree.tree_map_only(OclTensor, lambda one: there[id(one)], args)
    bare = tree.tree_map_only(OclTensor, lambda one: outputs.get(id(one), there[id(one)]), kwargs)
    goes_to = None if bare.get("device") is None else torch.device(bare["device"])
    if goes_to is not None:
        bare["device"] = "cpu"
        index = goes_to.index or 0
    found = func(*bare_args, **bare)
    for one in written.in_place:
        if form_of(there[id(one)]) != form_of(one):
            reformed(one, there[id(one)])
    changed = {id(one.memory): one.memory for one in written.in_place}
    moved = sum(write(memory, hosts[key]) for key, memory in changed.items())
    moved += sum({id(one.memory): one.memory.size for one in tensors
                  if one.memory.host is None}.values())  # fmt: skip
    for one in written.outputs:
        value = outputs[id(one)]
        if value.size() != one.size():
            resized(one, value.size(), value.stride())
        fill(one, value)
    if goes_to is not None and goes_to.type not in ("cpu", "ocl"):
        found = tree.tree_map_only(torch.Tensor, lambda one: one.to(goes_to), found)
    elif goes_to is None or goes_to.type == "ocl":
        found = tree.tree_map_only(torch.Tensor, lambda one: _back(one, known, index), found)
    _count(func, time.perf_counter() - begin, moved)
    return found


class _Written(Record):
    """Tensors that an operator writes to."""

    in_place: list[OclTensor]
    """What they hold before counts."""

    outputs: list[OclTensor]
    """They are `out=`, and may be of another size."""


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
    """On the device: an argument itself, or a new tensor of these values."""
    if one.layout is not torch.strided:
        raise NotImplementedError(f"{one.layout} is for tensors on the CPU: call .cpu() before")
    if id(one) in known:
        return known[id(one)]
    return sent(one, index)


def sent(value: torch.Tensor, index: int) -> OclTensor:
    """A tensor of the CPU on a device, in the same order of memory."""
    value = value.resolve_conj().resolve_neg()
    stride = value.stride() if is_dense(value.size(), value.stride()) else contiguous(value.size())
    there = made(index, value.size(), stride, value.dtype)
    fill(there, value)
    return there
