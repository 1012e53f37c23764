"""Compare batch norm by kernels in C with torch's, forward and backward.

    python -m cputrain.bench.batch_norms --rounds 30

Both take turns in one process, which keeps freed memory as every launch does. The table has the
medians in milliseconds, and the median of the ratios of each round with the range of its middle
half. `--activation` is called in place with the output; "none" leaves it out.
"""

from __future__ import annotations

import argparse
import math
import sys
from statistics import median, quantiles
from time import perf_counter
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from cputrain.runtime.batch_norm import BatchNorms
from cputrain.runtime.glibc import Malloc

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES = (
    (16, 64, 112, 112), (16, 256, 56, 56), (16, 64, 56, 56), (4, 64, 64, 64), (16, 128, 28, 28),
    (16, 512, 28, 28), (16, 256, 20, 20), (16, 64, 16, 16), (16, 256, 14, 14), (16, 1024, 14, 14),
    (16, 512, 10, 10), (16, 512, 7, 7), (16, 2048, 7, 7), (16, 256, 4, 4), (4, 32, 32, 32),
    (16, 256, 8, 8), (16, 16, 32, 32), (256, 512), (1024, 1024), (64, 64, 256), (4, 16, 16, 32, 32),
)  # fmt: skip

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda output: output,
    "relu": lambda output: torch.relu_(output),
}


def main(argv: list[str]) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cputrain.bench.batch_norms")
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each shape")
    parser.add_argument("--activation", choices=ACTIVATIONS, default="relu", help="what follows")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of torch")
    given = parser.parse_args(argv)
    torch.set_num_threads(given.threads)
    Malloc().keep(1 << 33)
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}\n")
    print("| input | memory | torch, ms | C, ms | ratio |\n| --- | --- | ---: | ---: | ---: |")
    ratios = []
    for shape in SHAPES:
        layouts = [torch.contiguous_format, *([torch.channels_last] if len(shape) == 4 else [])]
        for layout in layouts:
            times = _times(shape, layout, given.activation, given.rounds)
            each = [theirs / ours for theirs, ours in zip(*times, strict=True)]
            low, _, high = quantiles(each, n=4)
            name = "channels last" if layout is torch.channels_last else "contiguous"
            theirs, ours = (median(seconds) * 1e3 for seconds in times)
            print(
                f"| {' × '.join(map(str, shape))} | {name} | {theirs:.2f} | {ours:.2f} "
                f"| {median(each):.2f} ({low:.2f} to {high:.2f}) |",
                flush=True,
            )
            ratios.append(median(each))
    print(f"\ngeometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.2f}")
    return 0


def _times(
    shape: tuple[int, ...], layout: torch.memory_format, activation: str, rounds: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of forward and backward in each round, by torch and by the kernels."""
    data, grad = (torch.randn(shape).contiguous(memory_format=layout) for _ in range(2))
    weight, bias = torch.randn(shape[1]), torch.randn(shape[1])
    for tensor in (data, weight, bias):
        tensor.requires_grad_()
    mean, variance = torch.zeros(shape[1]), torch.ones(shape[1])
    kernels = BatchNorms()
    times: tuple[list[float], list[float]] = ([], [])
    warm_up = 3
    try:
        for number in range(rounds + warm_up):
            for is_on in (False, True):
                kernels.is_on = is_on
                data.grad = None
                begin = perf_counter()
                output = F.batch_norm(data, mean, variance, weight, bias, True)
                result = ACTIVATIONS[activation](output)
                torch.autograd.backward(result, grad)
                if number >= warm_up:
                    times[is_on].append(perf_counter() - begin)
                del output, result
    finally:
        kernels.undo()
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
