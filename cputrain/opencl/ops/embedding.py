"""Rows that are picked by numbers: embeddings.

A number that there is no row for cannot raise where it is found: it gives what is not a number, and
nothing goes back to it.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.types import NAMES, are_supported

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

NUMBERS = (torch.int64, torch.int32)


@kernel(aten.embedding.default)
def embedding(
    weight: OclTensor, indices: OclTensor, padding_idx: int = -1,  # noqa: ARG001
    scale_grad_by_freq: bool = False, sparse: bool = False,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Gather rows of the weight by index."""
    if not _are_ours(weight, indices) or weight.dim() != 2:
        return NotImplemented
    return _picked(weight, 0, indices, [*indices.size(), weight.size(1)])


@kernel(aten.index_select.default)
def index_select(self: OclTensor, dim: int, index: OclTensor) -> Any:
    """Gather slices of a dimension by index."""
    if not _are_ours(self, index) or index.dim() > 1 or not self.dim():
        return NotImplemented
    if not -self.dim() <= dim < self.dim():
        return NotImplemented
    dim %= self.dim()
    size = list(self.size())
    size[dim] = index.numel()
    return _picked(self, dim, index, size)


def _picked(self: OclTensor, dim: int, index: OclTensor, size: list[int]) -> OclTensor:
    device = self.memory.device
    out = empty(device.index, size, contiguous(size), self.dtype)
    if out.numel():
        one, numbers = as_contiguous(self), as_contiguous(index)
        ready = _kernel_for(device, "picked", self.dtype, index.dtype)
        device.launch(
            ready, *launch_size(out.numel()), out.numel(), prod(self.size()[dim + 1 :]),
            index.numel(), self.size(dim), one.memory.buffer, one.storage_offset(),
            numbers.memory.buffer, numbers.storage_offset(), out.memory.buffer,
        )  # fmt: skip
    return out


@kernel(aten.embedding_dense_backward.default)
def embedding_backward(
    grad_output: OclTensor, indices: OclTensor, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:  # fmt: skip
    """Scatter-add gradients into rows by index."""
    if scale_grad_by_freq or not _are_ours(grad_output, indices):
        return NotImplemented
    if not grad_output.is_floating_point():
        return NotImplemented
    device, inner = grad_output.memory.device, grad_output.size(-1)
    size = (num_weights, inner)
    out = empty(device.index, size, contiguous(size), grad_output.dtype)
    out.zero_()
    many = indices.numel()
    if not many or not inner:
        return out
    keys = _sorted(as_contiguous(indices))
    grad = as_contiguous(grad_output)
    ready = _kernel_for(device, "added", grad.dtype, indices.dtype)
    device.launch(
        ready, *launch_size(many * inner), many, inner, num_weights, padding_idx,
        keys.memory.buffer, grad.memory.buffer, grad.storage_offset(), out.memory.buffer,
    )  # fmt: skip
    return out


def _sorted(numbers: OclTensor) -> OclTensor:
    """Return (index, position) keys in sorted order, by a bitonic sort."""
    device = numbers.memory.device
    many = numbers.numel()
    every = 1 << (many - 1).bit_length()
    keys = empty(device.index, (every,), (1,), torch.int64)
    make = _kernel_for(device, "keys", torch.float32, numbers.dtype)
    exchange = _kernel_for(device, "exchanged", torch.float32, torch.int64)
    device.launch(
        make, *launch_size(every), many, every, numbers.memory.buffer,
        numbers.storage_offset(), keys.memory.buffer,
    )  # fmt: skip
    run = 2
    while run <= every:
        apart = run // 2
        while apart:
            device.launch(exchange, *launch_size(every), every, run, apart, keys.memory.buffer)
            apart //= 2
        run *= 2
    return keys


def _are_ours(one: OclTensor, index: Any) -> bool:
    return (
        isinstance(index, OclTensor)
        and isinstance(one, OclTensor)
        and index.dtype in NUMBERS
        and index.memory.device is one.memory.device
        and index.numel() < 1 << 32
        and are_supported(one.memory.device, one.dtype)
    )


@lru_cache
def _kernel_for(device: Device, name: str, kind: torch.dtype, index: torch.dtype) -> Any:
    number = np.int64
    types = {
        "picked": (*[number] * 4, None, number, None, number, None),
        "keys": (number, number, None, number, None),
        "exchanged": (number, number, number, None),
        "added": (*[number] * 4, None, None, number, None),
    }[name]
    defined = {
        "T": NAMES[kind], "I": NAMES[index], "MISSING": "NAN" if kind.is_floating_point else "0"
    }  # fmt: skip
    return compile_kernel(device, program_source("picking", defined), name, types)
