"""Softmax cross entropy and its gradient, which the forward computes as well.

Torch writes the logarithms of the probabilities to memory, fills a gradient with zeros, and reads
both to write the gradient of the input. Here a row is read once and its gradient written once.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, NamedTuple

import torch

from cputrain.kernels.build import load
from cputrain.kernels.threads import num_exact_threads

if TYPE_CHECKING:
    from torch import Tensor


class _CrossEntropyArguments(ctypes.Structure):
    """The struct CrossEntropy of the C file."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("num_rows", "num_classes", "ignored")),
        *((name, ctypes.c_void_p) for name in (
            "input", "targets", "grad", "losses", "parallel", "thread", "threads",
        )),
        ("scale", ctypes.c_double), ("num_threads", ctypes.c_uint32),
    )  # fmt: skip


class LossReduction(NamedTuple):
    """Mean or sum of the losses of rows."""

    num_rows: int
    """Number of rows whose target is not ignored."""

    is_mean: bool

    @property
    def scale(self) -> float:
        """Factor of the gradient of a row's loss."""
        return 1 / max(self.num_rows, 1) if self.is_mean else 1.0

    def loss(self, total: float) -> Tensor:
        """Return the loss, given the sum of the losses of all rows."""
        if self.is_mean:
            total = total / self.num_rows if self.num_rows else float("nan")
        return torch.tensor(total, dtype=torch.float32, device="cpu")


class CrossEntropyKernels:
    """The compiled kernels. Raises BuildError if they cannot be had here.

    Args:
        openmp: Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads in torch's
            OpenMP runtime.
    """

    def __init__(self, openmp: tuple[int, int, int]) -> None:
        self._openmp = openmp
        library = load("cross_entropy")
        self._compute = library.cross_entropy
        self._compute.restype = ctypes.c_double
        self._count = library.cross_entropy_count
        self._count.argtypes = (ctypes.c_void_p, *[ctypes.c_int64] * 3)
        self._count.restype = ctypes.c_int64

    def compute(
        self, data: Tensor, targets: Tensor, ignored: int, *, is_mean: bool, needs_grad: bool
    ) -> tuple[Tensor, Tensor | None] | None:
        """Return the loss, and the gradient of the input if it is needed.

        Return None if a target is no class, for which torch raises an error.

        Args:
            data: Contiguous tensor of float32, a row for each target.
            targets: Contiguous tensor of int64.
            ignored: The target of rows that do not count.
            is_mean: Whether the loss is the mean over the rows that count, or their sum.
            needs_grad: Whether to compute the gradient of the input.
        """
        reduction = self.reduction(targets, data.size(1), ignored, is_mean=is_mean)
        if reduction is None:
            return None
        grad = torch.empty_like(data) if needs_grad else None
        total = self.compute_rows(data, targets, ignored, reduction.scale, grad)
        return reduction.loss(total), grad

    def reduction(
        self, targets: Tensor, num_classes: int, ignored: int, *, is_mean: bool
    ) -> LossReduction | None:
        """Return how losses of rows become one; None if a target is no class."""
        count: int = self._count(targets.data_ptr(), targets.numel(), num_classes, ignored)
        return None if count < 0 else LossReduction(count, is_mean)

    def compute_rows(
        self, data: Tensor, targets: Tensor, ignored: int, scale: float, grad: Tensor | None
    ) -> float:
        """Return the sum of losses, and write `scale` times its gradient to `grad`."""
        losses = torch.empty(targets.numel(), dtype=torch.float64, device="cpu")
        arguments = _CrossEntropyArguments(
            *data.shape, ignored, data.data_ptr(), targets.data_ptr(),
            None if grad is None else grad.data_ptr(), losses.data_ptr(), *self._openmp,
            scale, num_exact_threads(),
        )  # fmt: skip
        return float(self._compute(ctypes.byref(arguments)))
