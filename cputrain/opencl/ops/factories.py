"""Factory functions, copies, `cat`, and reading a scalar."""

from __future__ import annotations

from typing import Any

import torch

from cputrain.opencl.elementwise import run
from cputrain.opencl.fallback import copy_to_device
from cputrain.opencl.shapes import (
    broadcast,
    contiguous,
    has_unique_elements,
    is_dense,
    is_partial_alias,
)
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import (
    OclTensor,
    empty,
    fill,
    meta_tensor_like,
    on_host,
    read,
    resize_in_place,
    write,
)
from cputrain.opencl.trace import break_trace
from cputrain.opencl.types import are_supported, can_represent

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

aten = torch.ops.aten

PRESERVE = (None, torch.preserve_format)


def like(self: OclTensor, memory_format: Any, dtype: torch.dtype | None) -> OclTensor:
    """Return an uninitialised tensor of this shape, with the strides that torch would choose."""
    kind = dtype or self.dtype
    index = self.memory.device.index
    if memory_format in PRESERVE:
        if is_dense(self.size(), self.stride()):
            return empty(index, self.size(), self.stride(), kind)
        return empty(index, self.size(), torch.empty_like(meta_tensor_like(self)).stride(), kind)
    stride = torch.empty(self.size(), device="meta", memory_format=memory_format).stride()
    return empty(index, self.size(), stride, kind)


def _goes_elsewhere(self: OclTensor, device: Any, layout: Any) -> bool:
    return layout not in (None, torch.strided) or (
        device is not None and torch.device(device) != self.device
    )


def _filled(one: OclTensor, value: Any) -> OclTensor:
    if (
        not isinstance(value, complex)
        and are_supported(one.memory.device, one.dtype)
        and can_represent(one.dtype, value)
    ):
        computes = torch.uint8 if one.dtype is torch.bool else one.dtype
        run("VALUE", one, [], [("VALUE", computes, value)], computes=computes)
    else:
        fill(one, value)
    return one


@kernel(aten.empty_like.default)
def empty_like(
    self: OclTensor, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Return an uninitialised tensor of the same shape."""
    if _goes_elsewhere(self, device, layout):
        return NotImplemented
    return like(self, memory_format, dtype)


@kernel(aten.zeros_like.default)
def zeros_like(self: OclTensor, **options: Any) -> Any:
    """Return zeros of the same shape."""
    return full_like(self, 0, **options)


@kernel(aten.ones_like.default)
def ones_like(self: OclTensor, **options: Any) -> Any:
    """Return ones of the same shape."""
    return full_like(self, 1, **options)


@kernel(aten.full_like.default)
def full_like(self: OclTensor, fill_value: Any, **options: Any) -> Any:
    """Return a tensor of the same shape filled with a value."""
    found = empty_like(self, **options)
    return found if found is NotImplemented else _filled(found, fill_value)


@kernel(aten.new_empty_strided.default)
def new_empty_strided(
    self: OclTensor, size: Any, stride: Any, dtype: Any = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Return an uninitialised tensor of a given size and strides."""
    if _goes_elsewhere(self, device, layout):
        return NotImplemented
    return empty(self.memory.device.index, size, stride, dtype or self.dtype)


@kernel(aten.new_empty.default)
def new_empty(self: OclTensor, size: Any, **options: Any) -> Any:
    """Return an uninitialised contiguous tensor of a given size."""
    return new_empty_strided(self, size, contiguous(size), **options)


@kernel(aten.new_zeros.default)
def new_zeros(self: OclTensor, size: Any, **options: Any) -> Any:
    """Return zeros of a given size."""
    return new_full(self, size, 0, **options)


@kernel(aten.new_ones.default)
def new_ones(self: OclTensor, size: Any, **options: Any) -> Any:
    """Return ones of a given size."""
    return new_full(self, size, 1, **options)


@kernel(aten.new_full.default)
def new_full(self: OclTensor, size: Any, fill_value: Any, **options: Any) -> Any:
    """Return a tensor of a given size filled with a value."""
    found = new_empty(self, size, **options)
    return found if found is NotImplemented else _filled(found, fill_value)


@kernel(aten.resize_.default)
def resize_(one: Any, size: Any, memory_format: Any = None) -> Any:
    """Resize in place; keep the elements in storage order as far as they fit."""
    if list(one.size()) == list(size):
        return one
    form = torch.empty(size, device="meta", memory_format=memory_format or torch.contiguous_format)
    one.memory.device.finish()
    before = one.memory
    held = read(before)[int(one.storage_offset()) * one.itemsize : before.used]
    resize_in_place(one, size, form.stride())
    if one.memory is not before:
        host = read(one.memory)
        many = min(len(held), one.memory.used)
        host[:many] = held[:many]
        write(one.memory, host)
    return one


@kernel(aten.fill_.Scalar)
def fill_(self: OclTensor, value: Any) -> Any:
    """Fill with a value in place."""
    return NotImplemented if isinstance(value, complex) else _filled(self, value)


@kernel(aten.zero_.default)
def zero_(self: OclTensor) -> Any:
    """Fill with zeros in place."""
    return _filled(self, 0)


@kernel(aten.copy_.default)
def copy_(self: Any, src: Any, non_blocking: bool = False) -> Any:  # noqa: ARG001
    """Copy between device and host, or within a device, across dtypes and strides."""
    if not isinstance(src, OclTensor):
        if src.device.type != "cpu" or src.layout is not torch.strided:
            return NotImplemented
        fill(self, src)
        return self
    if not isinstance(self, OclTensor):
        src.memory.device.finish()
        self.copy_(on_host(src))
        return self
    if self.memory.device is not src.memory.device:
        src.memory.device.finish()
        fill(self, on_host(src))
        return self
    if (
        is_partial_alias(self, src)  # where they overlap, torch may refuse it
        or not has_unique_elements(self)
        or not are_supported(self.memory.device, self.dtype, src.dtype)
        or broadcast([self.size(), src.size()]) != list(self.size())
    ):
        return NotImplemented
    run("SRC", self, [("SRC", src)], computes=src.dtype)
    return self


@kernel(aten.detach.default)
def detach(self: OclTensor) -> Any:
    """Return a view outside the autograd graph. (Autograd calls this for every gradient.)"""
    return self.metadata.view_of(self)


@kernel(aten.set_.source_Tensor)
def set_(self: Any, source: Any) -> Any:
    """Share the source tensor's memory, size and strides from now on."""
    if not (isinstance(self, OclTensor) and isinstance(source, OclTensor)):
        return NotImplemented
    if self.dtype is not source.dtype or self.memory.device is not source.memory.device:
        return NotImplemented
    break_trace()
    self.data = source
    return self


@kernel(aten.clone.default)
def clone(self: OclTensor, *, memory_format: Any = None) -> Any:
    """Return a copy in newly allocated memory."""
    return _copied(like(self, memory_format, None), self)


@kernel(aten._to_copy.default)
def to_copy(
    self: OclTensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, non_blocking: bool = False, memory_format: Any = None,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Return a copy with another dtype or on another device."""
    if layout not in (None, torch.strided):
        return NotImplemented
    goes = self.device if device is None else torch.device(device)
    if goes.type == self.device.type and goes.index in (None, self.device.index):
        return _copied(like(self, memory_format, dtype), self)
    self.memory.device.finish()
    value = on_host(self).to(
        dtype or self.dtype, memory_format=memory_format or torch.preserve_format
    )
    if goes.type == self.device.type:
        return copy_to_device(value, goes.index or 0)
    if goes.type != "cpu":
        return value.to(goes)
    is_own = self.memory.host is None and self.memory.copy is None
    return value if is_own else value.clone()


def _copied(there: OclTensor, src: OclTensor) -> Any:
    found = copy_(there, src)
    if found is NotImplemented:
        src.memory.device.finish()
        fill(there, on_host(src))
    return there


@kernel(aten._local_scalar_dense.default)
def local_scalar_dense(self: OclTensor) -> Any:
    """Return the value of a one-element tensor."""
    self.memory.device.finish()
    return on_host(self).item()


@kernel(aten.cat.default)
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate tensors along a dimension."""
    parts = [one for one in tensors if one.dim() != 1 or one.numel()]
    first = parts[0] if parts else None
    if first is None or not isinstance(first, OclTensor):
        return NotImplemented
    if not are_supported(first.memory.device, first.dtype) or not all(
        isinstance(one, OclTensor)
        and one.dtype is first.dtype
        and one.memory.device is first.memory.device
        and one.dim() == first.dim()
        for one in parts
    ):
        return NotImplemented
    if not -first.dim() <= dim < first.dim():
        return NotImplemented
    dim %= first.dim()
    others = [[n for place, n in enumerate(one.size()) if place != dim] for one in parts]
    if any(one != others[0] for one in others):
        return NotImplemented
    size = list(first.size())
    size[dim] = sum(one.size(dim) for one in parts)
    stride = contiguous(size)
    out = empty(first.memory.device.index, size, stride, first.dtype)
    at = 0
    for one in parts:
        copy_(OclTensor(out.memory, one.size(), stride, at * stride[dim], out.dtype), one)
        at += one.size(dim)
    return out


@kernel(aten.stack.default)
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate tensors along a new dimension."""
    if not all(isinstance(one, OclTensor) and one.size() == tensors[0].size() for one in tensors):
        return NotImplemented
    at = dim + tensors[0].dim() + 1 if dim < 0 else dim
    if not 0 <= at <= tensors[0].dim():
        return NotImplemented
    return cat([one.unsqueeze(at) for one in tensors], at)


@kernel(aten._unsafe_view.default)
def unsafe_view(self: OclTensor, size: Any) -> Any:
    """Return a view of another shape."""
    return self.view(size)
