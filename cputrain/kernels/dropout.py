"""The noise of dropout: the numbers that torch would draw, on all threads instead of one."""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING

import torch

from cputrain.kernels.build import load
from cputrain.kernels.threads import num_exact_threads

if TYPE_CHECKING:
    from torch import Generator, Tensor

NUM_BITS = 53
"""Random bits of a number that torch compares with a probability."""

NUMBERS_OF_THREAD = 1 << 14
"""Fewest numbers of each of several threads."""

STATE_BYTES = 5056
"""Length of the state of torch's CPU generator; another length is another generator."""


class _DropoutArguments(ctypes.Structure):
    """The struct Dropout of the C file."""

    _fields_ = (
        ("length", ctypes.c_int64), ("threshold", ctypes.c_uint64), ("kept", ctypes.c_uint64),
        *((name, ctypes.c_void_p) for name in (
            "state", "noise", "parallel", "thread", "threads",
        )),
        ("size", ctypes.c_int32), ("num_threads", ctypes.c_uint32), ("after", ctypes.c_void_p),
    )  # fmt: skip


class DropoutKernels:
    """The compiled kernels. Raises BuildError if they cannot be had here.

    Args:
        openmp: Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads in torch's
            OpenMP runtime.
    """

    def __init__(self, openmp: tuple[int, int, int]) -> None:
        self._openmp = openmp
        self._draw = load("dropout").dropout

    def noise(self, data: Tensor, probability: float, generator: Generator) -> Tensor | None:
        """Return what torch multiplies an input with, and advance the generator.

        Return None, with the generator as it was, if another thread has drawn from it meanwhile.

        Args:
            data: Input, whose elements fill its memory without gaps.
            probability: Probability that an element becomes 0; neither 0 nor 1.
            generator: Generator of torch on the CPU.
        """
        before = generator.get_state()
        if before.numel() != STATE_BYTES:
            return None
        after = before.clone()
        kept = torch.ones(1, dtype=data.dtype, device="cpu").div_(1 - probability)
        noise = torch.empty_like(data)
        # (in a forked child, torch too has one thread for so few: others would never start)
        num_threads = max(
            1, min(num_exact_threads(for_all=True), data.numel() // NUMBERS_OF_THREAD)
        )
        arguments = _DropoutArguments(
            data.numel(), math.ceil(math.ldexp(1 - probability, NUM_BITS)),
            int.from_bytes(bytes(kept.view(torch.uint8).tolist()), "little"),
            before.data_ptr(), noise.data_ptr(), *self._openmp,
            data.element_size(), num_threads, after.data_ptr(),
        )  # fmt: skip
        self._draw(ctypes.byref(arguments))
        if not torch.equal(generator.get_state(), before):
            return None
        generator.set_state(after)
        return noise
