"""Prove what was compiled for a region: its numbers beside those of the script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cputrain.step.step_proof import are_near, run_first, shared_positions, tolerance_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cputrain.step.recorded.path import Ending, Path, Reading, RecordedFunction
    from cputrain.step.recorded.region import Region


class GradientProof:
    """What a compiled function returns for the tensors of a region whose loss is complete.

    Raises CompileError if it was not compiled, or fails.

    Args:
        ending: The function.
        region: The region, of which nothing is pending.
    """

    def __init__(self, ending: Ending, region: Region) -> None:
        self._ending = ending
        self._copies = [region.buffers_before[id(buffer)].clone() for buffer in ending.buffers]
        self._buffers_before = [copy.clone() for copy in self._copies]
        self._arguments = [
            *ending.weights, *self._copies, *ending.attributes, *region.batch,
            *_draw_again(region, region.path),
        ]  # fmt: skip
        self._results = _run(ending, self._arguments)
        self._expected = [region.get(index) for index in ending.order]
        self._reals = [None if tensor is None else tensor.eager for tensor in self._expected]
        self._gradients = [
            None if weight.grad is None else weight.grad.clone() for weight in ending.trained
        ]

    def shared(self) -> set[int]:
        """Return the positions of gradients that are in the memory of others or of arguments."""
        return shared_positions(self._results[1 + len(self._ending.order) :], self._arguments)

    def difference(self, loss: Tensor) -> str:
        """Return how it differs from what the script computed since; "" if equal."""
        ending = self._ending
        tolerance = tolerance_of(ending.weights)
        zero = torch.zeros_like(loss)
        if not are_near([self._results[0]], [loss], [zero], tolerance):
            return "the compiled loss is another"
        number = len(ending.order)
        for real, result in zip(self._reals, self._results[1 : 1 + number], strict=True):
            if real is not None and not _is_same(result, real, tolerance):
                return "a compiled result is another"
        gradients = []
        for weight, before in zip(ending.trained, self._gradients, strict=True):
            if weight.grad is None:
                return "autograd gives a parameter no gradient"
            gradients.append(weight.grad if before is None else weight.grad - before)
        compiled = self._results[1 + number :]
        if not are_near(compiled, gradients, list(map(torch.zeros_like, gradients)), tolerance):
            return "the compiled gradients are others"
        if not are_near(self._copies, ending.buffers, self._buffers_before, tolerance):
            return "the compiled buffers are others"
        return ""


def is_read_value(reading: Reading, region: Region, path: Path, index: int) -> bool:
    """Return whether the function compiled for a result returns what the script has read.

    Raises CompileError if it was not compiled, or fails.

    Args:
        reading: The function.
        region: The region, of which nothing is pending.
        path: The calls before the result was read.
        index: Its index.
    """
    expected, num_batch = region.read_values[path, index]
    buffers = [region.buffers_before[id(buffer)] for buffer in reading.buffers]
    batch, numbers = region.batch[:num_batch], _draw_again(region, path)
    tensors = [*reading.weights, *buffers, *reading.attributes, *batch, *numbers]
    [result] = _run(reading, tensors)
    return _is_same(result, expected, tolerance_of(reading.weights))


def _run(function: RecordedFunction, arguments: list[Tensor]) -> Sequence[Tensor]:
    assert function.future is not None
    return run_first(function.future.result(), arguments)


def _is_same(result: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Return whether a result is another's equal, within a tolerance if it has fractions."""
    if expected.is_floating_point():
        return are_near([result], [expected], [torch.zeros_like(expected)], tolerance)
    return result.dtype is expected.dtype and torch.equal(result, expected)


def _draw_again(region: Region, path: Path) -> list[Tensor]:
    """Return the random numbers that the calls of a path have drawn in a region."""
    states = iter(region.random_states)
    current = torch.get_rng_state()
    numbers = []
    for call in path.calls():
        if call.noise:
            torch.set_rng_state(next(states))
            numbers += [noise.draw() for noise in call.noise]
    torch.set_rng_state(current)
    return numbers
