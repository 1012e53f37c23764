"""Batch norm in training, forward and backward, with the gradient of an activation behind it.

Torch reads a tensor twice for its moments and once more to normalize it, and writes the gradient
of the activation to memory to read it twice again. These kernels take a channel that fits a core's
cache through all of it at once.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch

from cputrain.kernels.build import load

if TYPE_CHECKING:
    from torch import Tensor

ROWS_BYTES = 1 << 17
"""Bytes of rows that are read twice: they should stay in a core's cache."""

MIN_ROWS, MAX_ROWS = 32, 512

CACHE_BYTES = 1 << 19
"""A tensor stays in the caches of the cores if each has no more of it than this."""


class Activation(NamedTuple):
    """Gradient of an activation: 1 between two bounds, and `slope` outside."""

    low: float
    high: float
    slope: float


class _Activation(ctypes.Structure):
    _fields_ = (
        ("low", ctypes.c_float), ("high", ctypes.c_float), ("slope", ctypes.c_float),
        ("is_there", ctypes.c_int32),
    )  # fmt: skip


class _Arguments(ctypes.Structure):
    """The struct BatchNorm of the C file."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_samples", "num_channels", "plane")),
        *((name, ctypes.c_void_p) for name in (
            "input", "weight", "bias", "grad_output", "output", "mean", "rstd", "variance",
            "grad_weight", "grad_bias", "partial", "parallel", "thread", "threads",
        )),
        ("eps", ctypes.c_double),
        ("activation", _Activation), ("num_threads", ctypes.c_uint32),
        ("is_finite", ctypes.c_uint32),
        *((name, ctypes.c_int64) for name in ("by_channel", "num_parts", "next")),
    )  # fmt: skip


class BatchNormKernels:
    """The compiled kernels. Raises BuildError if they cannot be had here.

    Args:
        openmp: Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads in torch's
            OpenMP runtime.
    """

    def __init__(self, openmp: tuple[int, int, int]) -> None:
        self._openmp = openmp
        self.by_channel: bool | None = None
        """Whether contiguous tensors are computed channel by channel; None: by their size."""
        library = load("batch_norm")
        self._update = library.batch_norm_update
        self._update.argtypes = (*[ctypes.c_void_p] * 4, ctypes.c_int64, ctypes.c_double)
        self._functions = {
            (is_forward, in_rows): getattr(library, f"batch_norm_{step}_{order}")
            for is_forward, step in ((True, "forward"), (False, "backward"))
            for in_rows, order in ((False, "planes"), (True, "rows"))
        }

    def forward(
        self,
        data: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor] | None:
        """Return the output; and means, reciprocal standard deviations and unbiased variances.

        Return None if any of these is no finite number: torch adds up in more bits.

        Args:
            data: Tensor of float32, contiguous or channels last.
            weight: Contiguous tensor of float32, as is `bias`.
            bias: What is added to each channel.
            eps: What is added to variances.
        """
        output = torch.empty_like(data)
        moments = torch.empty((3, data.size(1)), dtype=torch.float32, device="cpu")
        arguments, in_rows, _partial = self._arguments(data, weight, bias, moments)
        arguments.output = output.data_ptr()
        arguments.eps = eps
        self._functions[True, in_rows](ctypes.byref(arguments))
        return (output, moments) if arguments.is_finite else None

    def update(self, running: tuple[Tensor, Tensor], moments: Tensor, momentum: float) -> None:
        """Move running means and variances towards those of a batch, as torch's operator does."""
        mean, _, variance = _rows(moments)
        running_mean, running_var = running
        self._update(
            running_mean.data_ptr(), running_var.data_ptr(), mean, variance,
            moments.size(1), momentum,
        )  # fmt: skip

    def backward(
        self,
        grad_output: Tensor,
        data: Tensor,
        weight: Tensor,
        bias: Tensor,
        moments: Tensor,
        activation: Activation | None,
        *,
        needs_input: bool,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Return the gradients of input, weight and bias.

        Args:
            grad_output: Gradient of what the activation returned, in the memory format of `data`.
            data: The forward's, as are `weight` and `bias`.
            weight: What each channel was multiplied by.
            bias: What was added to each channel.
            moments: What the forward returned.
            activation: What followed; None if nothing did.
            needs_input: Whether the gradient of the input is needed.
        """
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
        grad_input = torch.empty_like(data) if needs_input else None
        arguments, in_rows, _partial = self._arguments(data, weight, bias, moments)
        arguments.grad_output = grad_output.data_ptr()
        arguments.output = None if grad_input is None else grad_input.data_ptr()
        arguments.grad_weight, arguments.grad_bias = grad_weight.data_ptr(), grad_bias.data_ptr()
        if activation is not None:
            arguments.activation = _Activation(*activation, 1)
        self._functions[False, in_rows](ctypes.byref(arguments))
        return grad_input, grad_weight, grad_bias

    def _arguments(
        self, data: Tensor, weight: Tensor, bias: Tensor, moments: Tensor
    ) -> tuple[_Arguments, bool, Tensor]:
        """Return the arguments that forward and backward share, and memory for partial sums."""
        num_samples, num_channels = data.shape[:2]
        plane = data.numel() // (num_samples * num_channels)
        in_rows = not data.is_contiguous()
        num_threads = torch.get_num_threads()
        num_parts = 0
        by_channel = self.by_channel
        if by_channel is None:
            is_cached = 4 * data.numel() <= CACHE_BYTES * num_threads
            by_channel = num_channels >= num_threads and not is_cached
        if in_rows:
            num_rows = num_samples * plane
            rows = min(max(ROWS_BYTES // (4 * num_channels), MIN_ROWS), MAX_ROWS)
            parts_per_thread = -(-num_rows // (rows * num_threads))
            num_parts = max(1, min(parts_per_thread * num_threads, num_rows // MIN_ROWS))
            num_partial = (num_parts + 2) * num_channels
        else:
            num_partial = 0 if by_channel else 2 * (num_samples + 1) * num_channels
        partial = torch.empty(num_partial, dtype=torch.float64, device="cpu")
        arguments = _Arguments(
            num_samples, num_channels, plane, data.data_ptr(), weight.data_ptr(), bias.data_ptr(),
            None, None, *_rows(moments), None, None, partial.data_ptr(), *self._openmp,
        )  # fmt: skip
        arguments.num_threads, arguments.num_parts = num_threads, num_parts
        arguments.by_channel = by_channel
        return arguments, in_rows, partial


def _rows(moments: Tensor) -> tuple[int, int, int]:
    """Return the addresses of the three rows."""
    begin, nbytes = moments.data_ptr(), 4 * moments.size(1)
    return begin, begin + nbytes, begin + 2 * nbytes
