"""Gather and scatter by index: embedding, index_select and gather.

A kernel cannot raise for an index out of range: it returns NaN for that row, and its gradient is
dropped.
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
from cputrain.opencl.types import NAMES, are_supported, element_definitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cputrain.opencl.device import Device

aten = torch.ops.aten

INDEX_DTYPES = (torch.int64, torch.int32)
"""Dtypes of indices that the kernels support."""


@kernel(aten.embedding.default)
def embedding(
    weight: OclTensor, indices: OclTensor, padding_idx: int = -1,  # noqa: ARG001
    scale_grad_by_freq: bool = False, sparse: bool = False,  # noqa: ARG001
) -> Any:  # fmt: skip
    """Gather rows of the weight by index."""
    if not _are_supported(weight, indices) or weight.dim() != 2:
        return NotImplemented
    return _gather_rows(weight, 0, indices, [*indices.size(), weight.size(1)])


@kernel(aten.index_select.default)
def index_select(self: OclTensor, dim: int, index: OclTensor) -> Any:
    """Gather slices of a dimension by index."""
    if not _are_supported(self, index) or index.dim() > 1 or not self.dim():
        return NotImplemented
    if not -self.dim() <= dim < self.dim():
        return NotImplemented
    dim %= self.dim()
    size = list(self.size())
    size[dim] = index.numel()
    return _gather_rows(self, dim, index, size)


@kernel(aten.gather.default)
def gather(self: OclTensor, dim: int, index: OclTensor, *, sparse_grad: bool = False) -> Any:
    """Gather an element of a dimension for each index."""
    if not _are_supported(self, index) or sparse_grad or not 0 < self.dim() == index.dim():
        return NotImplemented
    if not -self.dim() <= dim < self.dim():
        return NotImplemented
    dim %= self.dim()
    size = list(index.size())
    if [*size[:dim], *size[dim + 1 :]] != [*self.size()[:dim], *self.size()[dim + 1 :]]:
        return NotImplemented
    return _launch_gather("gather_elements", self, dim, index, size, size[dim])


def _gather_rows(self: OclTensor, dim: int, index: OclTensor, size: list[int]) -> OclTensor:
    return _launch_gather("gather_rows", self, dim, index, size, index.numel())


def _launch_gather(
    name: str, self: OclTensor, dim: int, index: OclTensor, size: list[int], num_indices: int
) -> OclTensor:
    device = self.memory.device
    out = empty(device.index, size, contiguous(size), self.dtype)
    if out.numel():
        dense_self, dense_index = as_contiguous(self), as_contiguous(index)
        gather_kernel = _kernel_for(device, name, self.dtype, index.dtype)
        device.launch(
            gather_kernel, *launch_size(out.numel()), out.numel(), prod(self.size()[dim + 1 :]),
            num_indices, self.size(dim), dense_self.memory.buffer, dense_self.storage_offset(),
            dense_index.memory.buffer, dense_index.storage_offset(), out.memory.buffer,
        )  # fmt: skip
    return out


@kernel(aten.embedding_dense_backward.default)
def embedding_backward(
    grad_output: OclTensor, indices: OclTensor, num_weights: int, padding_idx: int,
    scale_grad_by_freq: bool,
) -> Any:  # fmt: skip
    """Scatter-add gradients into rows by index."""
    if scale_grad_by_freq or not _are_supported(grad_output, indices):
        return NotImplemented
    if not grad_output.is_floating_point():
        return NotImplemented
    device, inner = grad_output.memory.device, grad_output.size(-1)
    size = (num_weights, inner)
    out = empty(device.index, size, contiguous(size), grad_output.dtype)
    out.zero_()
    num_indices = indices.numel()
    if not num_indices or not inner:
        return out
    keys = _sorted_keys(as_contiguous(indices))
    grad = as_contiguous(grad_output)
    scatter_add = _kernel_for(device, "scatter_add", grad.dtype, indices.dtype)
    device.launch(
        scatter_add, *launch_size(num_indices * inner), num_indices, inner, num_weights,
        padding_idx, keys.memory.buffer, grad.memory.buffer, grad.storage_offset(),
        out.memory.buffer,
    )  # fmt: skip
    return out


def _sorted_keys(index: OclTensor) -> OclTensor:
    """Return (index, position) keys in sorted order, by a bitonic sort."""
    device = index.memory.device
    num_indices = index.numel()
    num_keys = 1 << (num_indices - 1).bit_length()
    keys = empty(device.index, (num_keys,), (1,), torch.int64)
    make_keys = _kernel_for(device, "make_keys", torch.float32, index.dtype)
    compare_exchange = _kernel_for(device, "compare_exchange", torch.float32, torch.int64)
    device.launch(
        make_keys, *launch_size(num_keys), num_indices, num_keys, index.memory.buffer,
        index.storage_offset(), keys.memory.buffer,
    )  # fmt: skip
    run_length = 2
    while run_length <= num_keys:
        offset = run_length // 2
        while offset:
            device.launch(
                compare_exchange,
                *launch_size(num_keys),
                num_keys,
                run_length,
                offset,
                keys.memory.buffer,
            )
            offset //= 2
        run_length *= 2
    return keys


def _are_supported(tensor: OclTensor, index: Any) -> bool:
    return (
        isinstance(index, OclTensor)
        and isinstance(tensor, OclTensor)
        and index.dtype in INDEX_DTYPES
        and index.memory.device is tensor.memory.device
        and index.numel() < 1 << 32
        and are_supported(tensor.memory.device, tensor.dtype)
    )


@lru_cache
def _kernel_for(device: Device, name: str, dtype: torch.dtype, index: torch.dtype) -> Any:
    long_type = np.int64
    types = {
        "gather_rows": (*[long_type] * 4, None, long_type, None, long_type, None),
        "gather_elements": (*[long_type] * 4, None, long_type, None, long_type, None),
        "make_keys": (long_type, long_type, None, long_type, None),
        "compare_exchange": (long_type, long_type, long_type, None),
        "scatter_add": (*[long_type] * 4, None, None, long_type, None),
    }[name]
    definitions = {
        **element_definitions(dtype), "I": NAMES[index],
        "MISSING": "NAN" if dtype.is_floating_point else "0",
    }  # fmt: skip
    return compile_kernel(device, program_source("embedding", definitions), name, types)
