"""Adam and AdamW with moments of 8 bits: their code book, and a step in one pass over memory.

Blocks of 256 elements have a scale each, their largest magnitude. A first moment is kept as 127
times the square root of its magnitude, with its sign, and a second moment as 255 times its fourth
root, both rounded to the nearest. Of the numbers of a normal distribution, that loses less than
books with a unary exponent do, and it needs no table.
"""

from __future__ import annotations

import ctypes
import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from cputrain.kernels.build import load
from cputrain.kernels.threads import num_exact_threads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

BLOCK_SIZE = 256

SMALLEST_SCALE = torch.finfo(torch.float32).tiny
"""Scale of blocks of zeros and denormals, whose reciprocal is finite."""

BLOCKS_OF_THREAD = 64
"""Fewest blocks of each of several threads."""

CHUNK = 1 << 18
"""Elements that torch's operators update at once, so that what they allocate stays small."""


class EightBitMoments(NamedTuple):
    """Moments of a parameter, in the order of its memory."""

    codes: Tensor
    """int8 of first moments, uint8 of second ones; the last block is filled with zeros."""

    scales: Tensor
    """float32, one for each block."""

    @classmethod
    def zeros(cls, numel: int, *, is_signed: bool) -> EightBitMoments:
        """Return moments of 0."""
        num_blocks = -(-numel // BLOCK_SIZE)
        dtype = torch.int8 if is_signed else torch.uint8
        codes = torch.zeros(num_blocks * BLOCK_SIZE, dtype=dtype, device="cpu")
        return cls(codes, torch.zeros(num_blocks, dtype=torch.float32, device="cpu"))

    @property
    def is_signed(self) -> bool:
        """Whether they are first moments."""
        return self.codes.dtype is torch.int8

    def part(self, begin: int, end: int) -> EightBitMoments:
        """Return a view of the blocks of some elements; `begin` is a multiple of a block's size."""
        blocks = slice(begin // BLOCK_SIZE, -(-end // BLOCK_SIZE))
        codes = self.codes[blocks.start * BLOCK_SIZE : blocks.stop * BLOCK_SIZE]
        return EightBitMoments(codes, self.scales[blocks])

    def decode(self, numel: int) -> Tensor:
        """Return the first `numel` numbers in float32."""
        numbers = _book(self.codes.float(), self.is_signed)
        return numbers.view(-1, BLOCK_SIZE).mul_(self.scales[:, None]).view(-1)[:numel]

    def encode(self, numbers: Tensor) -> None:
        """Keep numbers: the nearest codes, and for second moments above 0 none that means 0.

        A block with an infinity or NaN becomes NaN.
        """
        most, power = (127, 2) if self.is_signed else (255, 4)
        blocks = numbers.new_zeros(len(self.scales), BLOCK_SIZE, dtype=torch.float32)
        blocks.view(-1)[: numbers.numel()] = numbers
        magnitudes = blocks.abs()
        scales = magnitudes.amax(1, keepdim=True).clamp_(min=SMALLEST_SCALE)
        scales.masked_fill_(~scales.isfinite(), math.nan)
        magnitudes.mul_(scales.reciprocal()).nan_to_num_(0.0).mul_(most**power)
        roots = magnitudes.sqrt() if self.is_signed else magnitudes.sqrt().sqrt_()
        codes = roots.floor_().clamp_(max=most - 1)  # the nearest is this or the next
        codes += magnitudes * 2 > codes**power + (codes + 1) ** power
        if self.is_signed:
            codes *= blocks.sign().nan_to_num_(0.0)
        else:
            codes = torch.maximum(codes, ((blocks > 0) & scales.isfinite()).float())
        self.codes.copy_(codes.view(-1))
        self.scales.copy_(scales.view(-1))


def _book(codes: Tensor, is_signed: bool) -> Tensor:
    """Return what codes mean, between -1 and 1."""
    if is_signed:
        roots = codes * (1 / 127)
        return roots * roots.abs()
    squares = (codes * (1 / 255)).square_()
    return squares.square_()


class AdamOptions(NamedTuple):
    """Options of a parameter group."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    decoupled_weight_decay: bool
    maximize: bool

    @property
    def shrink(self) -> float:
        """Factor of parameters before their update."""
        return 1 - self.lr * self.weight_decay if self.decoupled_weight_decay else 1.0

    @property
    def penalty(self) -> float:
        """What of the parameters is added to their gradients."""
        return 0.0 if self.decoupled_weight_decay else self.weight_decay

    def step_size(self, step: float) -> float:
        """Return the factor of the quotient of the moments."""
        return self.lr / (1 - math.pow(self.beta1, step))

    def correction(self, step: float) -> float:
        """Return what the root of second moments is divided by."""
        return math.sqrt(1 - math.pow(self.beta2, step))


class AdamRow(NamedTuple):
    """A parameter with its gradient and moments, all of which lie in one order in memory."""

    param: Tensor
    """One dimension, of float32 or bfloat16."""

    grad: Tensor
    """One dimension, of float32 or bfloat16."""

    averages: EightBitMoments
    squares: EightBitMoments
    step: float
    """Number of the step, from 1."""


class _Parameter(ctypes.Structure):
    """The struct Parameter of the C file."""

    _fields_ = (
        ("length", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in (
            "param", "grad", "averages", "average_scales", "squares", "square_scales",
        )),
        ("step_size", ctypes.c_float), ("correction", ctypes.c_float),
        ("is_param_bf16", ctypes.c_int32), ("is_grad_bf16", ctypes.c_int32),
    )  # fmt: skip


class _EightBitAdamArguments(ctypes.Structure):
    """The struct EightBitAdam of the C file."""

    _fields_ = (
        ("num_params", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("params", "parallel", "thread", "threads")),
        *((name, ctypes.c_float) for name in (
            "keep1", "new1", "keep2", "new2", "eps", "shrink", "decay", "sign",
        )),
        ("num_threads", ctypes.c_uint32),
    )  # fmt: skip


class EightBitAdamKernels:
    """The compiled kernel. Raises BuildError if it cannot be had here.

    Args:
        openmp: Addresses of GOMP_parallel, omp_get_thread_num and omp_get_num_threads in torch's
            OpenMP runtime.
    """

    def __init__(self, openmp: tuple[int, int, int]) -> None:
        self._openmp = openmp
        self._update = load("eight_bit_adam").eight_bit_adam

    def update(self, rows: Sequence[AdamRow], options: AdamOptions) -> None:
        """Take a step of Adam: change parameters and moments."""
        params = (_Parameter * len(rows))(
            *(
                _Parameter(
                    row.param.numel(), row.param.data_ptr(), row.grad.data_ptr(),
                    row.averages.codes.data_ptr(), row.averages.scales.data_ptr(),
                    row.squares.codes.data_ptr(), row.squares.scales.data_ptr(),
                    options.step_size(row.step), options.correction(row.step),
                    row.param.dtype is torch.bfloat16, row.grad.dtype is torch.bfloat16,
                )
                for row in rows
            )
        )  # fmt: skip
        num_blocks = sum(len(row.averages.scales) for row in rows)
        num_threads = max(1, min(num_exact_threads(), num_blocks // BLOCKS_OF_THREAD))
        arguments = _EightBitAdamArguments(
            len(rows), ctypes.addressof(params), *self._openmp,
            options.beta1, 1 - options.beta1, options.beta2, 1 - options.beta2, options.eps,
            options.shrink, options.penalty, -1.0 if options.maximize else 1.0, num_threads,
        )  # fmt: skip
        self._update(ctypes.byref(arguments))


def update_by_torch(rows: Sequence[AdamRow], options: AdamOptions) -> None:
    """Take the same step by torch's operators, for machines without a compiler."""
    for row in rows:
        numel = row.param.numel()
        for begin in range(0, numel, CHUNK):
            end = min(begin + CHUNK, numel)
            _update_chunk(
                AdamRow(
                    row.param[begin:end], row.grad[begin:end], row.averages.part(begin, end),
                    row.squares.part(begin, end), row.step,
                ),
                options,
            )  # fmt: skip


def _update_chunk(row: AdamRow, options: AdamOptions) -> None:
    params, numel = row.param.float(), row.param.numel()
    grads = row.grad.float() * (-1.0 if options.maximize else 1.0)
    grads.add_(params, alpha=options.penalty)
    averages = row.averages.decode(numel).mul_(options.beta1).add_(grads, alpha=1 - options.beta1)
    squares = row.squares.decode(numel).mul_(options.beta2)
    squares.addcmul_(grads, grads, value=1 - options.beta2)
    roots = squares.sqrt().div_(options.correction(row.step)).add_(options.eps)
    updates = averages.div(roots).mul_(options.step_size(row.step))
    row.param.copy_(params.mul(options.shrink).sub_(updates))
    row.averages.encode(averages)
    row.squares.encode(squares)
