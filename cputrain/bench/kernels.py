"""Compare kernels in C with torch's operators, forward and backward.

    python -m cputrain.bench.kernels batch_norm --rounds 30
    python -m cputrain.bench.kernels cross_entropy
    python -m cputrain.bench.kernels dropout
    python -m cputrain.bench.kernels depthwise

Both take turns in one process, which keeps freed memory as every launch does. The table has the
medians in milliseconds, and the median of the ratios of each round with the range of its middle
half. `--activation` is called in place with a batch norm's output; "none" leaves it out.
"""

from __future__ import annotations

import argparse
import math
import sys
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cputrain.runtime.batch_norm import BatchNorms
from cputrain.runtime.cross_entropy import CrossEntropies
from cputrain.runtime.depthwise import DepthwiseConvolutions
from cputrain.runtime.dropout import Dropouts
from cputrain.runtime.glibc import Malloc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Kernels = BatchNorms | CrossEntropies | Dropouts | DepthwiseConvolutions

BATCH_NORMS = (
    (16, 64, 112, 112), (16, 256, 56, 56), (16, 64, 56, 56), (4, 64, 64, 64), (16, 128, 28, 28),
    (16, 512, 28, 28), (16, 256, 20, 20), (16, 64, 16, 16), (16, 256, 14, 14), (16, 1024, 14, 14),
    (16, 512, 10, 10), (16, 512, 7, 7), (16, 2048, 7, 7), (16, 256, 4, 4), (4, 32, 32, 32),
    (16, 256, 8, 8), (16, 16, 32, 32), (256, 512), (1024, 1024), (64, 64, 256), (4, 16, 16, 32, 32),
)  # fmt: skip

CROSS_ENTROPIES = (
    (128, 10), (64, 1000), (256, 1000), (512, 1000), (4096, 65), (16384, 65), (4096, 1000),
    (1024, 8000), (512, 32000), (1024, 50257), (2048, 32000),
)  # fmt: skip

DROPOUTS = ((16384,), (32, 1024), (65536,), (8, 128, 256), (16, 65, 384), (16, 65, 1536),
            (8, 512, 768), (8, 12, 512, 512))  # fmt: skip

DEPTHWISE_CONVOLUTIONS = (
    ((4, 8, 16, 16), 5, 1), ((4, 16, 16, 16), 5, 1), ((16, 16, 16, 16), 5, 1),
    ((2, 64, 8, 8), 7, 1), ((8, 64, 8, 8), 7, 1), ((1, 256, 14, 14), 5, 1),
    ((16, 32, 14, 14), 4, 1), ((16, 72, 40, 40), 5, 2), ((16, 120, 20, 20), 5, 1),
    ((16, 672, 14, 14), 5, 1),
    ((16, 672, 14, 14), 5, 2), ((16, 1152, 7, 7), 5, 1), ((16, 96, 32, 32), 7, 1),
    ((16, 192, 16, 16), 7, 1), ((16, 384, 8, 8), 7, 1), ((16, 768, 4, 4), 7, 1),
    ((16, 96, 56, 56), 7, 1), ((8, 256, 400), 31, 1), ((8, 512, 200), 15, 1),
)  # fmt: skip
"""Inputs, the rows and columns of filters, and strides."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda output: output,
    "relu": lambda output: torch.relu_(output),
}

WARM_UP = 3

MIN_ROUNDS = 2
"""Fewest rounds, as a range is shown."""


class Case(NamedTuple):
    """A forward and backward to time, with the shape and kind that its row of the table shows."""

    shape: tuple[int, ...]
    kind: str
    data: Tensor
    step: Callable[[Tensor], None]


def main(argv: list[str]) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.kernels")
    parser.add_argument("operator", choices=("batch_norm", "cross_entropy", "dropout", "depthwise"))
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each shape")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu", help="what follows")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    given = parser.parse_args(argv)
    if given.rounds < MIN_ROUNDS:
        parser.error(f"--rounds must be at least {MIN_ROUNDS}; found {given.rounds}")
    torch.set_num_threads(given.threads)
    Malloc().keep(1 << 33)
    patches: Kernels
    if given.operator == "batch_norm":
        patches, cases = BatchNorms(), _batch_norms(ACTIVATIONS[given.activation])
    elif given.operator == "cross_entropy":
        patches, cases = CrossEntropies(), _cross_entropies()
    elif given.operator == "dropout":
        patches, cases = Dropouts(), _dropouts()
    else:
        patches, cases = DepthwiseConvolutions(), _depthwise_convolutions()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| input | kind | torch, ms | C, ms | ratio |\n| --- | --- | ---: | ---: | ---: |")
    ratios = []
    for case in cases:
        times = _times(patches, case, given.rounds)
        each = [theirs / ours for theirs, ours in zip(*times, strict=True)]
        low, _, high = quantiles(each, n=4)
        theirs, ours = (median(seconds) * 1e3 for seconds in times)
        print(
            f"| {' × '.join(map(str, case.shape))} | {case.kind} | {theirs:.2f} | {ours:.2f} "
            f"| {median(each):.2f} ({low:.2f} to {high:.2f}) |",
            flush=True,
        )
        ratios.append(median(each))
    patches.undo()
    print(f"\ngeometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    return 0


def _batch_norms(activation: Callable[[Tensor], Tensor]) -> Iterator[Case]:
    for shape in BATCH_NORMS:
        layouts = [torch.contiguous_format, *([torch.channels_last] if len(shape) == 4 else [])]
        for layout in layouts:
            data, grad = (torch.randn(shape).contiguous(memory_format=layout) for _ in range(2))
            weight, bias = (torch.randn(shape[1], requires_grad=True) for _ in range(2))
            mean, variance = torch.zeros(shape[1]), torch.ones(shape[1])
            values = mean, variance, weight, bias, grad

            def step(data: Tensor, values: tuple[Tensor, ...] = values) -> None:
                mean, variance, weight, bias, grad = values
                output = F.batch_norm(data, mean, variance, weight, bias, True)
                torch.autograd.backward(activation(output), grad)

            name = "channels last" if layout is torch.channels_last else "contiguous"
            yield Case(shape, name, data, step)


def _cross_entropies() -> Iterator[Case]:
    for shape in CROSS_ENTROPIES:
        targets = torch.randint(shape[1], shape[:1])

        def step(data: Tensor, targets: Tensor = targets) -> None:
            F.cross_entropy(data, targets).backward()  # type: ignore[no-untyped-call]

        yield Case(shape, "mean", torch.randn(shape), step)


def _dropouts() -> Iterator[Case]:
    for shape in DROPOUTS:

        def step(data: Tensor) -> None:
            F.dropout(data, 0.1).sum().backward()  # type: ignore[no-untyped-call]

        yield Case(shape, "0.1", torch.randn(shape), step)


def _depthwise_convolutions() -> Iterator[Case]:
    for shape, size, stride in DEPTHWISE_CONVOLUTIONS:
        layouts = [torch.contiguous_format, *([torch.channels_last] if len(shape) == 4 else [])]
        for layout in layouts:
            convolution = nn.Conv2d if len(shape) == 4 else nn.Conv1d
            layer = convolution(shape[1], shape[1], size, stride, size // 2, groups=shape[1])
            layer.weight.data = layer.weight.data.contiguous(memory_format=layout)
            data = torch.randn(shape).contiguous(memory_format=layout)
            grad = torch.randn_like(layer(data))

            def step(data: Tensor, layer: nn.Module = layer, grad: Tensor = grad) -> None:
                torch.autograd.backward(layer(data), grad)

            name = "channels last" if layout is torch.channels_last else "contiguous"
            yield Case(shape, f"filters of {size}, stride {stride}, {name}", data, step)


def _times(patches: Kernels, case: Case, rounds: int) -> tuple[list[float], list[float]]:
    """Return the seconds of forward and backward in each round, by torch and by the kernels."""
    data = case.data.requires_grad_()
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds + WARM_UP):
        for is_on in (False, True):
            patches.is_on = is_on
            data.grad = None
            begin = perf_counter()
            case.step(data)
            if number >= WARM_UP:
                times[is_on].append(perf_counter() - begin)
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
