"""Time steps of one optimizer, fused and not fused, interleaved in one process."""

from __future__ import annotations

import time

import torch

from cputrain.bench.compare import median
from cputrain.bench.optimizers.cases import OPTIMIZERS, TABLE_WIDTH
from cputrain.runtime import fused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.bench.optimizers.cases import Shape

BATCH_S = 3e-3
"""Target duration of a timed series of steps in seconds."""

LONG_ENOUGH_S = 0.05
"""Duration of a step in seconds above which it needs no warm-up steps."""

FLOOR = 0.98
"""Speed-up below which a cell is measured again; only the second measurement counts."""

MORE = 5
"""Factor for the number of rounds of the second measurement."""


def run(name: str, cells: Sequence[Shape], num_threads: int, rounds: int) -> list[dict[str, Any]]:
    """Return step times of both optimizers in each round, for each cell."""
    torch.set_num_threads(num_threads)
    return [_timed(name, shape, rounds) for shape in cells]


def _timed(name: str, shape: Shape, rounds: int) -> dict[str, Any]:
    transform = fused.apply(torch, True)
    assert transform is not None
    transform.undo()
    params = _parameters(shape)
    kind, options = OPTIMIZERS[name]
    plain, ours = (getattr(torch.optim, kind)(params, **options) for _ in range(2))
    for optimizer, is_fused in ((plain, False), (ours, True)):  # creates states
        _steps(transform, optimizer, 3, is_fused=is_fused)
    duration = min(_steps(transform, plain, 1, is_fused=False) for _ in range(3))
    count, warm = max(1, int(BATCH_S / duration)), 0 if duration > LONG_ENOUGH_S else 2

    def measure(num_rounds: int) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {"python": [], "cputrain": []}
        for number in range(num_rounds):
            sides = [("python", plain, False), ("cputrain", ours, True)]
            for side, optimizer, is_fused in sides if number % 2 == 0 else reversed(sides):
                if warm:
                    _steps(transform, optimizer, warm, is_fused=is_fused)
                elapsed = _steps(transform, optimizer, count, is_fused=is_fused)
                seconds[side].append(elapsed / count)
        return seconds

    seconds = measure(rounds)
    if _speed(seconds) < FLOOR:
        seconds = measure(MORE * rounds)
    return {
        "num_tensors": shape[0],
        "num_elements": shape[1],
        "touched": shape[2],
        "seconds": seconds,
        "is_fused": bool(transform.describe()),
    }


def _speed(seconds: dict[str, list[float]]) -> float:
    return median(a / b for a, b in zip(seconds["python"], seconds["cputrain"], strict=True))


def _parameters(shape: Shape) -> list[torch.nn.Parameter]:
    num_tensors, num_elements, touched = shape
    generator = torch.Generator().manual_seed(0)
    params = []
    for _ in range(num_tensors):
        size = (num_elements,) if touched == 1.0 else (num_elements // TABLE_WIDTH, TABLE_WIDTH)
        param = torch.nn.Parameter(torch.randn(size, generator=generator))
        param.grad = torch.randn(size, generator=generator)
        if touched < 1.0:
            order = torch.randperm(len(param), generator=generator)
            param.grad[order[max(1, int(touched * len(order))) :]] = 0.0
        params.append(param)
    return params


def _steps(
    transform: fused.FusedOptimizers, optimizer: Any, count: int, *, is_fused: bool
) -> float:
    """Run `count` steps and return their total time in seconds."""
    if is_fused:
        transform.redo()
    # CPU time of a single thread is not affected by other processes
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    begin = clock()
    for _ in range(count):
        optimizer.step()
    took = clock() - begin
    transform.undo()
    return took
