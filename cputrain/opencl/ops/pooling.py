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
from cputrain.opencl.types import MAX_INT_INDEX, NAMES, are_supported

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
    if not _is_ours(self):
        return NotImplemented
    size = _size_of_largest(
        self.size(), *_tuples(kernel_size, stride, padding, dilation), ceil_mode
    )
    index = self.memory.device.index
    out = empty(index, size, contiguous(size), self.dtype)
    indices = empty(index, size, contiguous(size), torch.int64)
    window = _window(kernel_size, stride, padding, dilation)
    one = as_contiguous(self)
    _launch(
        "largest", self.dtype, False, out,
        [one.memory.buffer, one.storage_offset(), *_images(self, out), *window,
         out.memory.buffer, indices.memory.buffer],
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
    ceil_mode: bool,  # noqa: ARG001  (the output's size says it)
    indices: OclTensor,
) -> Any:
    """Add each gradient at the index of its maximum."""
    if not _is_ours(grad_output, self):
        return NotImplemented
    out = empty(self.memory.device.index, self.size(), contiguous(self.size()), self.dtype)
    grad, places = as_contiguous(grad_output), as_contiguous(indices)
    _launch(
        "of_largest", self.dtype, False, out,
        [grad.memory.buffer, grad.storage_offset(), places.memory.buffer, places.storage_offset(),
         *_images(self, grad), *_window(kernel_size, stride, padding, dilation),
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
    if not _is_ours(self):
        return NotImplemented
    size = _size_of_mean(self.size(), *_tuples(kernel_size, stride, padding), ceil_mode)
    out = empty(self.memory.device.index, size, contiguous(size), self.dtype)
    one = as_contiguous(self)
    _launch(
        "means", self.dtype, False, out,
        [one.memory.buffer, one.storage_offset(), *_images(self, out),
         *_window(kernel_size, stride, padding, (1,)), int(count_include_pad),
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
    """To all that were in the window."""
    if not _is_ours(grad_output, self):
        return NotImplemented
    out = empty(self.memory.device.index, self.size(), contiguous(self.size()), self.dtype)
    grad = as_contiguous(grad_output)
    _launch(
        "of_means", self.dtype, False, out,
        [grad.memory.buffer, grad.storage_offset(), *_images(self, grad),
         *_window(kernel_size, stride, padding, (1,)), int(count_include_pad),
         divisor_override or 0, out.memory.buffer],
    )  # fmt: skip
    return out


@kernel(aten._adaptive_avg_pool2d.default)
def adaptive(self: OclTensor, output_size: Sequence[int]) -> Any:
    """Average-pool to a given output size."""
    size = [*self.size()[:-2], *output_size]
    if not _is_ours(self) or len(output_size) != 2 or min(size) < 1:
        return NotImplemented
    out = empty(self.memory.device.index, size, contiguous(size), self.dtype)
    one = as_contiguous(self)
    _launch(
        "means", self.dtype, True, out,
        [one.memory.buffer, one.storage_offset(), *_images(self, out), *[0] * 10,
         out.memory.buffer],
    )  # fmt: skip
    return out


@kernel(aten._adaptive_avg_pool2d_backward.default)
def adaptive_backward(grad_output: OclTensor, self: OclTensor) -> Any:
    """To all that were in the window."""
    if not _is_ours(grad_output, self):
        return NotImplemented
    out = empty(self.memory.device.index, self.size(), contiguous(self.size()), self.dtype)
    grad = as_contiguous(grad_output)
    _launch(
        "of_means", self.dtype, True, out,
        [grad.memory.buffer, grad.storage_offset(), *_images(self, grad), *[0] * 10,
         out.memory.buffer],
    )  # fmt: skip
    return out


def _is_ours(*tensors: OclTensor) -> bool:
    first = tensors[0]
    return (
        first.dtype.is_floating_point
        and are_supported(first.memory.device, first.dtype)
        and all(one.dim() in (3, 4) and one.numel() > 0 for one in tensors)
        and all(one.storage_offset() + one.numel() <= MAX_INT_INDEX for one in tensors)
        and all(one.dtype is first.dtype for one in tensors)
    )


def _images(large: OclTensor, small: OclTensor) -> tuple[int, ...]:
    return (*large.size()[-2:], *small.size()[-2:])


def _window(
    kernel_size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int],
) -> list[int]:  # fmt: skip
    every = (kernel_size, stride or kernel_size, padding, dilation)
    return [number for one in every for number in (one[0], one[-1])]


def _tuples(*each: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(one) for one in each]


@lru_cache(maxsize=1 << 10)
def _size_of_largest(size: Any, *window: Any) -> tuple[int, ...]:
    return tuple(aten.max_pool2d_with_indices(torch.empty(size, device="meta"), *window)[0].size())


@lru_cache(maxsize=1 << 10)
def _size_of_mean(size: Any, *window: Any) -> tuple[int, ...]:
    return tuple(aten.avg_pool2d(torch.empty(size, device="meta"), *window).size())


def _launch(
    name: str, kind: torch.dtype, is_adaptive: bool, out: OclTensor, arguments: list[Any]
) -> None:
    device = out.memory.device
    count = out.numel()
    ready = _kernel_for(device, name, kind, is_adaptive)
    device.launch(ready, *launch_size(count), count, *arguments)


@lru_cache
def _kernel_for(device: Device, name: str, kind: torch.dtype, is_adaptive: bool) -> Any:
    number = np.int32
    middle = {
        "largest": (None, number, *[number] * 12, None, None),
        "of_largest": (None, number, None, number, *[number] * 12, None),
        "means": (None, number, *[number] * 14, None),
        "of_means": (None, number, *[number] * 14, None),
    }[name]
    source = program_source("pool", {"T": NAMES[kind], "ADAPTIVE": int(is_adaptive)})
    return compile_kernel(device, source, name, (number, *middle))
