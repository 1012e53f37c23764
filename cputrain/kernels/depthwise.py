"""The gradient of the weight of a depthwise convolution with filters of any size.

Torch computes it by vectors for filters of three rows and columns only.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch

from cputrain.kernels.build import load

if TYPE_CHECKING:
    from torch import Tensor

    Pair = tuple[int, int]


NUM_LANES = 16
"""Channels that are summed together where they are last."""


class DepthwiseShape(NamedTuple):
    """Rows and columns of filters, and how these are moved over images."""

    kernel_size: Pair
    stride: Pair
    padding: Pair
    dilation: Pair


class _DepthwiseArguments(ctypes.Structure):
    """The struct Depthwise of the C file."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in (
            "images", "channels", "parts", "height", "width", "out_height", "out_width", "rows",
            "columns", "row_stride", "column_stride", "row_padding", "column_padding",
            "row_dilation", "column_dilation",
        )),
        *((name, ctypes.c_void_p) for name in (
            "input", "grad", "weight_grad", "copies", "parallel", "thread", "threads",
        )),
        ("num_threads", ctypes.c_uint32), ("is_channels_last", ctypes.c_int32),
    )  # fmt: skip


class DepthwiseKernels:
    """The compiled kernels. Raises BuildError if they cannot be had here.

    Args:
        openmp: Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads in torch's
            OpenMP runtime.
    """

    def __init__(self, openmp: tuple[int, int, int]) -> None:
        self._openmp = openmp
        library = load("depthwise")
        self._compute = library.depthwise_weight_grad
        self._num_copied = library.depthwise_copies
        self._num_copied.restype = ctypes.c_int64

    def weight_grad(self, data: Tensor, grad: Tensor, shape: DepthwiseShape) -> Tensor | None:
        """Return the gradient of the weight.

        Return None where inputs are infinite or NaN: these are multiplied with padding here.

        Args:
            data: Images of float32, contiguous or channels last.
            grad: Gradient of the output, in the same memory format.
            shape: Shape of the convolution.
        """
        images, channels, *size = data.shape
        num_threads = torch.get_num_threads()
        is_channels_last = not data.is_contiguous()
        num_units = -(-channels // NUM_LANES) if is_channels_last else channels
        num_parts = min(images, -(-num_threads // num_units))
        sums = torch.empty((num_parts, channels, 1, *shape.kernel_size), device="cpu")
        arguments = _DepthwiseArguments(
            images, channels, num_parts, *size, *grad.shape[2:], *shape.kernel_size, *shape.stride,
            *shape.padding, *shape.dilation, data.data_ptr(), grad.data_ptr(),
            sums.data_ptr(), None, *self._openmp, num_threads, is_channels_last,
        )  # fmt: skip
        num_copied: int = self._num_copied(ctypes.byref(arguments))
        copies = torch.empty(num_threads * num_copied, device="cpu")
        arguments.copies = copies.data_ptr()
        self._compute(ctypes.byref(arguments))
        weight_grad = sums[0] if num_parts == 1 else sums.sum(0)
        return weight_grad if bool(weight_grad.isfinite().all()) else None
