"""Max and average pooling."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from cputrain.opencl.elementwise import launch_size
from cputrain.opencl.program import compile_kernel, program_source
from cputrain.opencl.shapes import contiguous
from cputrain.opencl.table import kernel
from cputrain.opencl.tensor import OclTensor, as_contiguous, empty
from cputrain.opencl.types import MAX_INT_INDEX, are_supported, element_definitions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.opencl.device import Device

aten = torch.ops.aten


@kernel(aten.max_pool2d_with_indices.default)
def max_pool(
    self: OclTensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> Any:
    """Return the maxima of windows and their indices in the image."""
    if not _is_supported(self):
        return NotImplemented
    size = _max_pool_size(self.size(), *_tuples(kernel_size, stride, padding, dilation), ceil_mode)
    index = self.memory.device.index
    out = empty(index, size, contiguous(size), self.dtype)
    indices = empty(index, size, contiguous(size), torch.int64)
    window_arguments = _window_arguments(kernel_size, stride, padding, dilation)
    dense_self = as_contiguous(self)
    _launch(
        "max_pool", self.dtype, False, out,
        [dense_self.memory.buffer, dense_self.storage_offset(), *_plane_sizes(self, out),
         *window_arguments, out.memory.buffer, indices.memory.buffer],
    )  # fmt: skip
    return out, indices


@kernel(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    grad_output: OclTensor,
    self: OclTensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001  (the output's size shows it)
    indices: OclTensor,
) -> Any:
    """Add each gradient at the index of its maximum."""
    if not _is_supported(grad_output, self):
        return NotImplemented
    out = empty(self.memory.device.index, self.size(), contiguous(self.size()), self.dtype)
    dense_grad, dense_indices = as_contiguous(grad_output), as_contiguous(indices)
    _launch(
        "max_pool_gradient", self.dtype, False, out,
        [dense_grad.memory.buffer, dense_grad.storage_offset(),
         dense_indices.memory.buffer, dense_indices.storage_offset(),
         *_plane_sizes(self, dense_grad),
         *_window_arguments(kernel_size, stride, padding, dilation),
         out.memory.buffer],
    )  # fmt: skip
    return out


@kernel(aten.avg_pool2d.default)
def avg_pool(
    self: OclTensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """Return the mean of each window."""
    if not _is_supported(self):
        return NotImplemented
    size = _avg_pool_size(self.size(), *_tuples(kernel_size, stride, padding), ceil_mode)
    out = empty(self.memory.device.index, size, contiguous(size), self.dtype)
    dense_self = as_contiguous(self)
    _launch(
        "avg_pool", self.dtype, False, out,
        [dense_self.memory.buffer, dense_self.storage_offset(), *_plane_sizes(self, out),
         *_window_arguments(kernel_size, stride, padding, (1,)), int(count_include_pad),
         divisor_override or 0, out.memory.buffer],
    )  # fmt: skip
    return out


@kernel(aten.avg_pool2d_backward.default)
def avg_pool_backward(
    grad_output: OclTensor,
    self: OclTensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,  # noqa: ARG001
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """Distribute each gradient over its window."""
    if not _is_supported(grad_output, self):
        return NotImplemented
    out = empty(self.memory.device.index, self.size(), contiguous(self.size()), self.dtype)
    dense_grad = as_contiguous(grad_output)
    _launch(
        "avg_pool_gradient", self.dtype, False, out,
        [dense_grad.memory.buffer, dense_grad.storage_offset(), *_plane_sizes(self, dense_grad),
         *_window_arguments(kernel_size, stride, padding, (1,)), int(count_include_pad),
         divisor_override or 0, out.memory.buffer],
    )  # fmt: skip
    return out


@kernel(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(self: OclTensor, output_size: Sequence[int]) -> Any:
    """Return the means of windows that divide the image into a given output size."""
    size = [*self.size()[:-2], *output_size]
    if not _is_supported(self) or len(output_size) != 2 or min(size) < 1:
        return NotImplemented
    out = empty(self.memory.device.index, size, contiguous(size), self.dtype)
    dense_self = as_contiguous(self)
    _launch(
        "avg_pool", self.dtype, True, out,
        [dense_self.memory.buffer, dense_self.storage_offset(), *_plane_sizes(self, out), *[0] * 10,
         out.memory.buffer],
    )  # fmt: skip
    return out


@kernel(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool_backward(grad_output: OclTensor, self: OclTensor) -> Any:
    """Distribute each gradient over its window."""
    if not _is_supported(grad_output, self):
        return NotImplemented
    out = empty(self.memory.device.index, self.size(), contiguous(self.size()), self.dtype)
    dense_grad = as_contiguous(grad_output)
    _launch(
        "avg_pool_gradient", self.dtype, True, out,
        [dense_grad.memory.buffer, dense_grad.storage_offset(),
         *_plane_sizes(self, dense_grad), *[0] * 10, out.memory.buffer],
    )  # fmt: skip
    return out


def _is_supported(*tensors: OclTensor) -> bool:
    first = tensors[0]
    return (
        first.dtype.is_floating_point
        and are_supported(first.memory.device, first.dtype)
        and all(tensor.dim() in (3, 4) and tensor.numel() > 0 for tensor in tensors)
        and all(tensor.storage_offset() + tensor.numel() <= MAX_INT_INDEX for tensor in tensors)
        and all(tensor.dtype is first.dtype for tensor in tensors)
    )


def _plane_sizes(large: OclTensor, small: OclTensor) -> tuple[int, ...]:
    """Return height and width of the input and of the output."""
    return (*large.size()[-2:], *small.size()[-2:])


def _window_arguments(
    kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    """Return kernel size, stride, padding and dilation, each in both dimensions."""
    parameters = (kernel_size, stride or kernel_size, padding, dilation)
    return [value for parameter in parameters for value in (parameter[0], parameter[-1])]


def _tuples(*parameters: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(parameter) for parameter in parameters]


@lru_cache(maxsize=1 << 10)
def _max_pool_size(size: Any, *options: Any) -> tuple[int, ...]:
    return tuple(aten.max_pool2d_with_indices(torch.empty(size, device="meta"), *options)[0].size())


@lru_cache(maxsize=1 << 10)
def _avg_pool_size(size: Any, *options: Any) -> tuple[int, ...]:
    return tuple(aten.avg_pool2d(torch.empty(size, device="meta"), *options).size())


def _launch(
    name: str, dtype: torch.dtype, is_adaptive: bool, out: OclTensor, arguments: list[Any]
) -> None:
    device = out.memory.device
    num_elements = out.numel()
    ocl_kernel = _kernel_for(device, name, dtype, is_adaptive)
    device.launch(ocl_kernel, *launch_size(num_elements), num_elements, *arguments)


@lru_cache
def _kernel_for(device: Device, name: str, dtype: torch.dtype, is_adaptive: bool) -> Any:
    int_type = np.int32
    types = {
        "max_pool": (None, int_type, *[int_type] * 12, None, None),
        "max_pool_gradient": (None, int_type, None, int_type, *[int_type] * 12, None),
        "avg_pool": (None, int_type, *[int_type] * 14, None),
        "avg_pool_gradient": (None, int_type, *[int_type] * 14, None),
    }[name]
    source = program_source("pool", {**element_definitions(dtype), "ADAPTIVE": int(is_adaptive)})
    return compile_kernel(device, source, name, (int_type, *types))
