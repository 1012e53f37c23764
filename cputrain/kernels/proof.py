"""Examine kernels before their first use: a compiler, or a flag of its user, may be wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from cputrain.kernels.batch_norm import Activation
from cputrain.kernels.depthwise import DepthwiseShape
from cputrain.kernels.eight_bit_adam import (
    AdamOptions,
    AdamRow,
    EightBitMoments,
    update_by_torch,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from cputrain.kernels.batch_norm import BatchNormKernels
    from cputrain.kernels.cross_entropy import CrossEntropyKernels
    from cputrain.kernels.depthwise import DepthwiseKernels
    from cputrain.kernels.dropout import DropoutKernels
    from cputrain.kernels.eight_bit_adam import EightBitAdamKernels

SHAPE = (3, 19, 5, 7)
"""Shape of the examined inputs: neither planes nor channels fill the last vector."""

LAYOUTS = (
    (torch.contiguous_format, True), (torch.contiguous_format, False), (torch.channels_last, None)
)  # fmt: skip
"""Memory formats, with the order in which the kernels take planes."""

LOGITS_SHAPE = (7, 101)

FILTERS = (
    DepthwiseShape((5, 4), (1, 1), (2, 1), (1, 1)), DepthwiseShape((3, 9), (2, 1), (0, 4), (1, 1)),
    DepthwiseShape((4, 2), (1, 2), (3, 0), (1, 3)),
)  # fmt: skip
"""Shapes of the examined depthwise convolutions."""

NUM_DRAWN = 3001
"""Numbers of an examined noise: those of several blocks of the generator, and a rest."""

DROPOUT_SEED = 5

NUM_UPDATED = 1000
"""Elements of an examined parameter: those of three blocks, and a rest."""

ADAM_OPTIONS = (
    AdamOptions(0.01, 0.9, 0.999, 1e-8, 0.1, True, False),
    AdamOptions(0.01, 0.5, 0.9, 1e-3, 0.1, False, True),
)

TOLERANCE = 1e-4
"""Largest difference from float64, relative to the largest number."""


def is_batch_norm_right(kernels: BatchNormKernels) -> bool:
    """Return whether forward and backward agree with torch's operators in float64."""
    with torch.inference_mode(mode=False), torch.no_grad():
        for layout, by_channel in LAYOUTS:
            kernels.by_channel = by_channel
            if not all(_agree(kernels, layout, slope) for slope in (None, 0.0, 0.25)):
                return False
    kernels.by_channel = None
    return True


def _agree(kernels: BatchNormKernels, layout: torch.memory_format, slope: float | None) -> bool:
    numbers = torch.arange(math.prod(SHAPE), dtype=torch.float64, device="cpu")
    values = (numbers * 0.7).sin().reshape(SHAPE) + 0.5
    grad = (numbers * 1.3).cos().reshape(SHAPE)
    weight, bias = values[0, :, 0, 0] + 1, grad[0, :, 0, 0].clone()
    # (no graph: hooks of the script would be called as it is made)
    output, mean, rstd = torch.native_batch_norm(values, weight, bias, None, None, True, 0.0, 1e-5)
    before = grad if slope is None else torch.where(output > 0, grad, grad * slope)
    expected = [
        output,
        *torch.ops.aten.native_batch_norm_backward(
            before, values, weight, None, None, mean, rstd, True, 1e-5, [True, True, True]
        ),
    ]
    data = values.float().contiguous(memory_format=layout)
    parameters = weight.float(), bias.float()
    computed = kernels.forward(data, *parameters, 1e-5)
    if computed is None:
        return False
    activation = None if slope is None else Activation(0.0, math.inf, slope)
    gradients = kernels.backward(
        grad.float().contiguous(memory_format=layout), data, *parameters, computed[1], activation,
        needs_input=True,
    )  # fmt: skip
    running = torch.zeros_like(parameters[0]), torch.ones_like(parameters[0])
    kernels.update(running, computed[1], 0.5)
    results: list[Tensor | None] = [computed[0], *gradients, *running]
    variances, means = torch.var_mean(values, (0, 2, 3))
    expected += [means / 2, (1 + variances) / 2]
    return all(
        result is not None and bool((result - wanted).abs().max() <= TOLERANCE * wanted.abs().max())
        for result, wanted in zip(results, expected, strict=True)
    )


def is_cross_entropy_right(kernels: CrossEntropyKernels) -> bool:
    """Return whether loss and gradient agree with torch's operators in float64."""
    num_rows, num_classes = LOGITS_SHAPE
    with torch.inference_mode(mode=False), torch.no_grad():
        numbers = torch.arange(num_rows * num_classes, dtype=torch.float64, device="cpu")
        values = (numbers * 0.7).sin().reshape(LOGITS_SHAPE) * 20
        targets = torch.arange(num_rows, device="cpu") * 13
        targets[2] = ignored = -100
        computed = kernels.compute(values.float(), targets, ignored, is_mean=True, needs_grad=True)
        if computed is None or computed[1] is None:
            return False
        counted = targets != ignored
        logarithms = torch.log_softmax(values, 1)
        classes = targets.clamp(min=0)[:, None]
        loss = -logarithms.gather(1, classes)[:, 0][counted].mean()
        grad = logarithms.exp().scatter_add(1, classes, -torch.ones_like(values[:, :1]))
        grad *= counted[:, None] / counted.sum()
        results = ((computed[0], loss), (computed[1], grad))
        return all(
            bool((result - wanted).abs().max() <= TOLERANCE * wanted.abs().max())
            for result, wanted in results
        )


def is_dropout_right(kernels: DropoutKernels) -> bool:
    """Return whether the noise and the generator's state are those of torch's operator."""
    with torch.inference_mode(mode=False), torch.no_grad():
        generators = [torch.Generator("cpu").manual_seed(DROPOUT_SEED) for _ in range(2)]
        for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
            for probability in (0.1, 0.5, 1 / 3):
                data = torch.empty(NUM_DRAWN, dtype=dtype, device="cpu")
                expected = data.bernoulli_(1 - probability, generator=generators[0])
                expected.div_(1 - probability)
                noise = kernels.noise(data, probability, generators[1])
                states = [generator.get_state() for generator in generators]
                if noise is None or not torch.equal(noise, expected) or not torch.equal(*states):
                    return False
    return True


def is_depthwise_right(kernels: DepthwiseKernels) -> bool:
    """Return whether the gradient of the weight agrees with torch's operator in float64."""
    with torch.inference_mode(mode=False), torch.no_grad():
        for shape in FILTERS:
            for layout in (torch.contiguous_format, torch.channels_last):
                values = (_numbers(SHAPE) * 0.7).sin().contiguous(memory_format=layout)
                weight = _numbers((SHAPE[1], 1, *shape.kernel_size)).cos()
                options = ([*shape.stride], [*shape.padding], [*shape.dilation])
                output = torch.conv2d(values, weight, None, *options, SHAPE[1])
                grad = (_numbers(output.shape) * 1.3).cos().contiguous(memory_format=layout)
                _, wanted, _ = torch.ops.aten.convolution_backward(
                    grad, values, weight, None, *options, False, [0, 0], SHAPE[1],
                    [False, True, False],
                )  # fmt: skip
                result = kernels.weight_grad(values.float(), grad.float(), shape)
                if result is None or bool(
                    (result - wanted).abs().max() > TOLERANCE * wanted.abs().max()
                ):
                    return False
    return True


def is_eight_bit_adam_right(kernels: EightBitAdamKernels) -> bool:
    """Return whether parameters and moments agree with those of torch's operators."""
    with torch.inference_mode(mode=False), torch.no_grad():
        values = (_numbers([NUM_UPDATED]) * 0.7).sin()
        for options in ADAM_OPTIONS:
            for dtype in (torch.float32, torch.bfloat16):
                rows = [
                    AdamRow(
                        values.to(dtype, copy=True), (values * 3).cos().to(dtype),
                        EightBitMoments.zeros(NUM_UPDATED, is_signed=True),
                        EightBitMoments.zeros(NUM_UPDATED, is_signed=False), 2.0,
                    )
                    for _ in range(2)
                ]  # fmt: skip
                for row in rows:
                    row.averages.encode(values.float().cos())
                    row.squares.encode(values.float().square())
                kernels.update(rows[:1], options)
                update_by_torch(rows[1:], options)
                if not _are_alike(*rows):
                    return False
    return True


def _are_alike(result: AdamRow, wanted: AdamRow) -> bool:
    """Return whether rows are equal but for rounding, which may choose the next code."""
    tolerance = torch.finfo(wanted.param.dtype).eps * 2
    return (
        torch.allclose(result.param.float(), wanted.param.float(), tolerance, tolerance)
        and all(
            bool((getattr(result, name).codes.int() - getattr(wanted, name).codes).abs().max() <= 1)
            and torch.allclose(getattr(result, name).scales, getattr(wanted, name).scales)
            for name in ("averages", "squares")
        )
    )  # fmt: skip


def _numbers(shape: Sequence[int]) -> Tensor:
    numbers = torch.arange(math.prod(shape), dtype=torch.float64, device="cpu")
    return numbers.reshape(shape)
