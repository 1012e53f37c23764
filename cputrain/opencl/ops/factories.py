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

PRESERVE_FORMATS = (None, torch.preserve_format)
"""Memory formats that keep the strides of a dense tensor."""


def like(self: OclTensor, memory_format: Any, dtype: torch.dtype | None) -> OclTensor:
    """Return an uninitialized tensor of this shape, with the strides that torch would choose."""
    dtype = dtype or self.dtype
    index = self.memory.device.index
    if memory_format in PRESERVE_FORMATS:
        if is_dense(self.size(), self.stride()):
            return empty(index, self.size(), self.stride(), dtype)
        return empty(index, self.size(), torch.empty_like(meta_tensor_like(self)).stride(), dtype)
    stride = torch.empty(self.size(), device="meta", memory_format=memory_format).stride()
    return empty(index, self.size(), stride, dtype)


def _is_for_other_device(self: OclTensor, device: Any, layout: Any) -> bool:
    """Return whether the arguments of a factory ask for another device or layout."""
    return layout not in (None, torch.strided) or (
        device is not None and torch.device(device) != self.device
    )


def _fill(tensor: OclTensor, value: Any) -> OclTensor:
    """Fill a tensor with a value by a kernel, or on the CPU if its dtype needs that."""
    if (
        not isinstance(value, complex)
        and are_supported(tensor.memory.device, tensor.dtype)
        and can_represent(tensor.dtype, value)
    ):
        computes = torch.uint8 if tensor.dtype is torch.bool else tensor.dtype
        run("VALUE", tensor, [], [("VALUE", computes, value)], computes=computes)
    else:
        fill(tensor, value)
    return tensor


@kernel(aten.empty_like.default)
def empty_like(
    self: OclTensor, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, memory_format: Any = None,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Return an uninitialized tensor of the same shape."""
    if _is_for_other_device(self, device, layout):
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
    result = empty_like(self, **options)
    return result if result is NotImplemented else _fill(result, fill_value)


@kernel(aten.new_empty_strided.default)
def new_empty_strided(
    self: OclTensor, size: Any, stride: Any, dtype: Any = None, layout: Any = None,
    device: Any = None, pin_memory: Any = None,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Return an uninitialized tensor of a given size and strides."""
    if _is_for_other_device(self, device, layout):
        return NotImplemented
    return empty(self.memory.device.index, size, stride, dtype or self.dtype)


@kernel(aten.new_empty.default)
def new_empty(self: OclTensor, size: Any, **options: Any) -> Any:
    """Return an uninitialized contiguous tensor of a given size."""
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
    result = new_empty(self, size, **options)
    return result if result is NotImplemented else _fill(result, fill_value)


@kernel(aten.resize_.default)
def resize_(self: Any, size: Any, memory_format: Any = None) -> Any:
    """Resize in place; keep the elements in storage order as far as they fit."""
    if list(self.size()) == list(size):
        return self
    template = torch.empty(
        size, device="meta", memory_format=memory_format or torch.contiguous_format
    )
    self.memory.device.finish()
    old_memory = self.memory
    old_bytes = read(old_memory)[int(self.storage_offset()) * self.itemsize : old_memory.used]
    resize_in_place(self, size, template.stride())
    if self.memory is not old_memory:
        new_bytes = read(self.memory)
        num_bytes = min(len(old_bytes), self.memory.used)
        new_bytes[:num_bytes] = old_bytes[:num_bytes]
        write(self.memory, new_bytes)
    return self


@kernel(aten.fill_.Scalar)
def fill_(self: OclTensor, value: Any) -> Any:
    """Fill with a value in place."""
    return NotImplemented if isinstance(value, complex) else _fill(self, value)


@kernel(aten.zero_.default)
def zero_(self: OclTensor) -> Any:
    """Fill with zeros in place."""
    return _fill(self, 0)


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
        is_partial_alias(self, src)  # torch may raise for overlaps
        or not has_unique_elements(self)
        or not are_supported(self.memory.device, self.dtype, src.dtype)
        or broadcast([self.size(), src.size()]) != list(self.size())
    ):
        return NotImplemented
    run("SRC", self, [("SRC", src)], computes=src.dtype)
    return self


@kernel(aten.detach.default)
def detach(self: OclTensor) -> Any:
    """Return a view outside of the autograd graph; autograd calls this for every gradient."""
    return self.metadata.view_of(self)


@kernel(aten.set_.source_Tensor)
def set_(self: Any, source: Any) -> Any:
    """Make the tensor share the source's memory, size and strides."""
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
    return _copy_into(like(self, memory_format, None), self)


@kernel(aten._to_copy.default)
def to_copy(
    self: OclTensor, *, dtype: Any = None, layout: Any = None, device: Any = None,
    pin_memory: Any = None, non_blocking: bool = False, memory_format: Any = None,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Return a copy with another dtype or on another device."""
    if layout not in (None, torch.strided):
        return NotImplemented
    target_device = self.device if device is None else torch.device(device)
    if target_device.type == self.device.type and target_device.index in (None, self.device.index):
        return _copy_into(like(self, memory_format, dtype), self)
    self.memory.device.finish()
    value = on_host(self).to(
        dtype or self.dtype, memory_format=memory_format or torch.preserve_format
    )
    if target_device.type == self.device.type:
        return copy_to_device(value, target_device.index or 0)
    if target_device.type != "cpu":
        return value.to(target_device)
    is_copy = self.memory.host is None and self.memory.copy is None
    return value if is_copy else value.clone()


def _copy_into(target: OclTensor, src: OclTensor) -> Any:
    result = copy_(target, src)
    if result is NotImplemented:
        src.memory.device.finish()
        fill(target, on_host(src))
    return target


@kernel(aten._local_scalar_dense.default)
def local_scalar_dense(self: OclTensor) -> Any:
    """Return the value of a one-element tensor."""
    self.memory.device.finish(self.memory)
    return on_host(self).item()


@kernel(aten.cat.default)
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate tensors along a dimension."""
    sources = [tensor for tensor in tensors if tensor.dim() != 1 or tensor.numel()]
    first = sources[0] if sources else None
    if first is None or not isinstance(first, OclTensor):
        return NotImplemented
    if not are_supported(first.memory.device, first.dtype) or not all(
        isinstance(tensor, OclTensor)
        and tensor.dtype is first.dtype
        and tensor.memory.device is first.memory.device
        and tensor.dim() == first.dim()
        for tensor in sources
    ):
        return NotImplemented
    if not -first.dim() <= dim < first.dim():
        return NotImplemented
    dim %= first.dim()
    other_sizes = [[n for axis, n in enumerate(tensor.size()) if axis != dim] for tensor in sources]
    if any(tensor != other_sizes[0] for tensor in other_sizes):
        return NotImplemented
    size = list(first.size())
    size[dim] = sum(tensor.size(dim) for tensor in sources)
    stride = contiguous(size)
    out = empty(first.memory.device.index, size, stride, first.dtype)
    begin = 0
    for tensor in sources:
        copy_(OclTensor(out.memory, tensor.size(), stride, begin * stride[dim], out.dtype), tensor)
        begin += tensor.size(dim)
    return out


@kernel(aten.stack.default)
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    """Concatenate tensors along a new dimension."""
    if not all(
        isinstance(tensor, OclTensor) and tensor.size() == tensors[0].size() for tensor in tensors
    ):
        return NotImplemented
    new_dim = dim + tensors[0].dim() + 1 if dim < 0 else dim
    if not 0 <= new_dim <= tensors[0].dim():
        return NotImplemented
    return cat([tensor.unsqueeze(new_dim) for tensor in tensors], new_dim)


@kernel(aten._unsafe_view.default)
def unsafe_view(self: OclTensor, size: Any) -> Any:
    """Return a view of another shape."""
    return self.view(size)
