"""Time steps of one optimizer, fused by cputrain and as in torch, interleaved in one process."""

from __future__ import annotations

import time

import torch

from cputrain.bench.optimizers.cases import MIN_SPEEDUP, OPTIMIZERS, TABLE_WIDTH
from cputrain.measure.rounds import interleaved
from cputrain.measure.statistics import speedup_by_round
from cputrain.runtime.fused import FusedOptimizers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from cputrain.bench.optimizers.cases import Shape

TIMED_S = 3e-3
"""Target duration of a timed series of steps in seconds."""

LONG_STEP_S = 0.05
"""Duration of a step in seconds above which it needs no warm-up steps."""

REPEAT_FACTOR = 5
"""Factor for the number of rounds of the second measurement, which alone counts then."""


def run(name: str, cells: Sequence[Shape], num_threads: int, rounds: int) -> list[dict[str, Any]]:
    """Return for each cell the step times of torch's and the fused optimizer in each round."""
    torch.set_num_threads(num_threads)
    return [_measure_cell(name, shape, rounds) for shape in cells]


def _measure_cell(name: str, shape: Shape, rounds: int) -> dict[str, Any]:
    """Time steps of torch's optimizer and of the fused one over tensors of one shape.

    If the speed-up is below `MIN_SPEEDUP`, more rounds replace the measurement.
    """
    patches = FusedOptimizers(torch)
    patches.undo()
    params = _make_params(shape)
    class_name, options = OPTIMIZERS[name]
    reference, fused_optimizer = (
        getattr(torch.optim, class_name)(params, **options) for _ in range(2)
    )
    for optimizer, is_fused in (
        (reference, False),
        (fused_optimizer, True),
    ):  # creates the optimizer states
        _run_steps(patches, optimizer, 3, is_fused=is_fused)
    step_s = min(_run_steps(patches, reference, 1, is_fused=False) for _ in range(3))
    num_steps, num_warm_up = max(1, int(TIMED_S / step_s)), 0 if step_s > LONG_STEP_S else 2

    def measure_rounds(num_rounds: int) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {"python": [], "cputrain": []}
        sides = [("python", reference, False), ("cputrain", fused_optimizer, True)]
        for _, (side, optimizer, is_fused) in interleaved(sides, num_rounds):
            if num_warm_up:
                _run_steps(patches, optimizer, num_warm_up, is_fused=is_fused)
            elapsed_s = _run_steps(patches, optimizer, num_steps, is_fused=is_fused)
            seconds[side].append(elapsed_s / num_steps)
        return seconds

    seconds = measure_rounds(rounds)
    if _speedup(seconds) < MIN_SPEEDUP:
        seconds = measure_rounds(REPEAT_FACTOR * rounds)
    return {
        "num_tensors": shape[0],
        "num_elements": shape[1],
        "touched": shape[2],
        "seconds": seconds,
        "is_fused": bool(patches.describe()),
    }


def _speedup(seconds: dict[str, list[float]]) -> float:
    return speedup_by_round(seconds["python"], seconds["cputrain"]).median


def _make_params(shape: Shape) -> list[torch.nn.Parameter]:
    """Create random parameters with gradients, some rows of which are zero if the shape says so."""
    num_tensors, num_elements, touched = shape
    generator = torch.Generator().manual_seed(0)
    params = []
    for _ in range(num_tensors):
        size = (num_elements,) if touched == 1.0 else (num_elements // TABLE_WIDTH, TABLE_WIDTH)
        param = torch.nn.Parameter(torch.randn(size, generator=generator))
        param.grad = torch.randn(size, generator=generator)
        if touched < 1.0:
            row_order = torch.randperm(len(param), generator=generator)
            param.grad[row_order[max(1, int(touched * len(row_order))) :]] = 0.0
        params.append(param)
    return params


def _run_steps(
    patches: FusedOptimizers, optimizer: Any, num_steps: int, *, is_fused: bool
) -> float:
    """Run `num_steps` steps and return their total time in seconds."""
    if is_fused:
        patches.redo()
    # CPU time of a single thread is not affected by other processes
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    start_s = clock()
    for _ in range(num_steps):
        optimizer.step()
    elapsed_s = clock() - start_s
    patches.undo()
    return elapsed_s
