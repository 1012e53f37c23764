"""Moments of 8 bits: what their code book keeps, and steps of the kernel against float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cputrain.kernels import build, eight_bit_adam
from cputrain.kernels.build import BuildError
from cputrain.kernels.eight_bit_adam import (
    BLOCK_SIZE,
    AdamOptions,
    AdamRow,
    EightBitAdamKernels,
    EightBitMoments,
    update_by_torch,
)
from cputrain.kernels.proof import is_eight_bit_adam_right
from cputrain.runtime.openmp import parallel_functions

needs_compiler = pytest.mark.skipif(build.find_compiler() is None, reason="there is no C compiler")

TINY = torch.finfo(torch.float32).tiny

BLOCKS = st.sampled_from([0.0, TINY / 8, 1e-30, 1e-8, 1.0, 1e20, 3e38])
"""Largest magnitude of a block: zeros, denormals, and more."""


def numbers(seed: int, numel: int, largest: float, spread: float) -> Tensor:
    """Return numbers of a range of magnitudes that `spread` says."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(numel, generator=generator, dtype=torch.float64)
    values *= (spread * torch.randn(numel, generator=generator, dtype=torch.float64)).exp()
    return (values / values.abs().max().clamp(min=1e-300) * largest).float()


def encoded(values: Tensor, *, is_signed: bool) -> EightBitMoments:
    moments = EightBitMoments.zeros(values.numel(), is_signed=is_signed)
    moments.encode(values)
    return moments


def largest_of_blocks(values: Tensor) -> Tensor:
    """Return the largest magnitude of the block of each element."""
    padded = torch.nn.functional.pad(values.abs(), (0, -values.numel() % BLOCK_SIZE))
    largest = padded.view(-1, BLOCK_SIZE).amax(1)
    return largest.repeat_interleave(BLOCK_SIZE)[: values.numel()].double()


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 99), st.integers(1, 1500), BLOCKS, st.sampled_from([0.0, 1.0, 5.0]))
def test_errors_of_moments_are_bounded(
    seed: int, numel: int, largest: float, spread: float
) -> None:
    """Half of the distance of neighbours: 2 q / 2 in roots, with q levels, and 4 q / 2."""
    values = numbers(seed, numel, largest, spread)
    scales = largest_of_blocks(values).clamp(min=TINY)
    for is_signed, levels in ((True, 127), (False, 255)):
        data = values if is_signed else values.abs()
        result = encoded(data, is_signed=is_signed).decode(numel).double()
        fractions = data.double().abs() / scales
        if is_signed:
            bounds = fractions.sqrt() / levels + 0.5 / levels**2
        else:  # (what is not 0 is at least the first code)
            bounds = 2 * fractions**0.75 / levels + 6 * fractions.sqrt() / levels**2
            bounds += 1.0 / levels**4 + 4 * fractions**0.25 / levels**3
            assert torch.equal(result > 0, data > 0) or largest < TINY
        assert bool(((result - data).abs() <= bounds * scales * 1.001 + 1e-44).all())


@settings(deadline=None, max_examples=80)
@given(st.integers(0, 99), st.integers(1, 1500), BLOCKS, st.booleans())
def test_what_is_decoded_is_encoded_as_it_was(
    seed: int, numel: int, largest: float, is_signed: bool
) -> None:
    values = numbers(seed, numel, largest, 2.0)
    moments = encoded(values if is_signed else values.abs(), is_signed=is_signed)
    again = encoded(moments.decode(numel), is_signed=is_signed)
    assert torch.equal(again.codes, moments.codes)
    assert torch.equal(again.scales, moments.scales)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_a_block_with_what_is_no_number_is_none(value: float) -> None:
    values = torch.ones(3 * BLOCK_SIZE)
    values[BLOCK_SIZE + 5] = value
    for is_signed in (True, False):
        result = encoded(values, is_signed=is_signed).decode(values.numel())
        blocks = result.view(3, BLOCK_SIZE)
        assert bool(blocks[1].isnan().all())
        assert bool((blocks[[0, 2]] == 1).all())


def unary_book(*, is_signed: bool) -> Tensor:
    """Return the code book with a unary exponent of base 10 that others use."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (exponent + (not is_signed)) + 1)
        middles = (edges[1:] + edges[:-1]) / 2 * 10.0 ** (exponent - 6)
        values += middles.tolist() + ((-middles).tolist() if is_signed else [])
    return torch.tensor(sorted(values))


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_errors_are_smaller_than_those_of_books_with_unary_exponents(spread: float) -> None:
    values = numbers(0, 200 * BLOCK_SIZE, 1.0, spread)
    for is_signed in (True, False):
        data = values if is_signed else values.square()
        scales = largest_of_blocks(data).float()
        book = unary_book(is_signed=is_signed)
        nearest = torch.bucketize(data / scales, (book[1:] + book[:-1]) / 2)
        expected = book[nearest] * scales
        result = encoded(data, is_signed=is_signed).decode(data.numel())
        if not is_signed:  # updates are divided by the root
            data, expected, result = data.sqrt(), expected.sqrt(), result.sqrt()
        assert (result - data).norm() < 0.9 * (expected - data).norm()


@pytest.fixture(scope="module")
def kernels() -> EightBitAdamKernels:
    openmp = parallel_functions()
    assert openmp is not None
    return EightBitAdamKernels(openmp)


OPTIONS = st.builds(
    AdamOptions,
    st.sampled_from([0.0, 1e-3, 0.5]), st.sampled_from([0.0, 0.9, 0.99]),
    st.sampled_from([0.5, 0.95, 0.999]), st.sampled_from([1e-8, 1e-3]),
    st.sampled_from([0.0, 0.01, 0.5]), st.booleans(), st.booleans(),
)  # fmt: skip

DTYPES = st.sampled_from([torch.float32, torch.bfloat16])


def row_of(
    seed: int, numel: int, dtype: torch.dtype, grad_dtype: torch.dtype, step: int
) -> AdamRow:
    param, grad, average = (numbers(seed + i, numel, 1.0, 1.0) for i in range(3))
    return AdamRow(
        param.to(dtype), grad.to(grad_dtype), encoded(average, is_signed=True),
        encoded(average.square(), is_signed=False), float(step),
    )  # fmt: skip


def reference(row: AdamRow, options: AdamOptions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return parameter, the sum of its terms' magnitudes, and moments after a step in float64."""
    numel = row.param.numel()
    param, grad = row.param.double(), row.grad.double() * (-1 if options.maximize else 1)
    if options.decoupled_weight_decay:
        param = param * (1 - options.lr * options.weight_decay)
    else:
        grad = grad + options.weight_decay * param
    average = options.beta1 * row.averages.decode(numel).double() + (1 - options.beta1) * grad
    square = options.beta2 * row.squares.decode(numel).double() + (1 - options.beta2) * grad**2
    roots = (square / (1 - options.beta2**row.step)).sqrt() + options.eps
    rates = options.lr / (1 - options.beta1**row.step) / roots
    terms = options.beta1 * row.averages.decode(numel).double().abs()
    terms += (1 - options.beta1) * (row.grad.double().abs() + options.weight_decay * param.abs())
    return param - rates * average, param.abs() + rates * terms, average, square


@needs_compiler
@settings(deadline=None, max_examples=150)
@given(st.integers(0, 99), st.integers(1, 3000), DTYPES, DTYPES, OPTIONS, st.integers(1, 9999))
def test_steps_are_those_of_float64(
    kernels: EightBitAdamKernels,
    seed: int,
    numel: int,
    dtype: torch.dtype,
    grad_dtype: torch.dtype,
    options: AdamOptions,
    step: int,
) -> None:
    for update in (kernels.update, update_by_torch):
        row = row_of(seed, numel, dtype, grad_dtype, step)
        param, sizes, average, square = reference(row, options)
        update([row], options)
        bounds = torch.finfo(dtype).eps * param.abs() + 8 * torch.finfo(torch.float32).eps * sizes
        assert bool(((row.param.double() - param).abs() <= bounds).all())
        for moments, wanted in ((row.averages, average), (row.squares, square)):
            exact = encoded(wanted.float(), is_signed=moments.is_signed)
            assert bool((moments.codes.int() - exact.codes).abs().max() <= 1)
            assert torch.allclose(moments.scales, exact.scales, rtol=1e-5)


@needs_compiler
def test_the_number_of_threads_changes_no_bit(
    kernels: EightBitAdamKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eight_bit_adam, "BLOCKS_OF_THREAD", 1)
    options = AdamOptions(1e-3, 0.9, 0.999, 1e-8, 0.1, True, False)
    before, results = torch.get_num_threads(), []
    try:
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            rows = [row_of(n, n, torch.float32, torch.float32, 3) for n in (300, 5000, 20000)]
            kernels.update(rows, options)
            results.append(
                [each for row in rows for each in (row.param, *row.averages, *row.squares)]
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for r in results[1:] for a, b in zip(r, results[0], strict=True))


@needs_compiler
def test_the_examination_notices_a_wrong_kernel(
    kernels: EightBitAdamKernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_eight_bit_adam_right(kernels)
    right = kernels.update
    monkeypatch.setattr(
        kernels, "update", lambda rows, options: right(rows, options._replace(lr=options.lr * 1.1))
    )
    assert not is_eight_bit_adam_right(kernels)


def test_without_a_compiler_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(BuildError, match="no-such-compiler"):
        EightBitAdamKernels((0, 0, 0))
