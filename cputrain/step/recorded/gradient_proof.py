"""Prove a compiled region: its loss, results, gradients and buffers beside those of the script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cputrain.step.step_proof import are_near, tolerance_of

if TYPE_CHECKING:
    from cputrain.step.recorded.path import Ending
    from cputrain.step.recorded.region import Region


class GradientProof:
    """What a compiled function returns for the tensors of a region whose loss is complete.

    Raises CompileError if it was not compiled.

    Args:
        ending: The function.
        region: The region, of which nothing is pending.
    """

    def __init__(self, ending: Ending, region: Region) -> None:
        assert ending.future is not None
        self._ending = ending
        compiled = ending.future.result()
        self._copies = [region.buffers_before[id(buffer)] for buffer in ending.buffers]
        self._buffers_before = [copy.clone() for copy in self._copies]
        weights = ending.tensors[: len(ending.tensors) - len(ending.buffers)]
        numbers = _draw_again(region)
        self._arguments = [*weights, *self._copies, *region.batch, *numbers]
        with torch.no_grad():
            self._results = compiled(self._arguments)
        self._expected = [region.get(index) for index in ending.order]
        self._reals = [None if tensor is None else tensor.eager for tensor in self._expected]
        self._gradients = [
            None if weight.grad is None else weight.grad.clone() for weight in ending.weights
        ]

    def shared(self) -> set[int]:
        """Return the positions of gradients that are in the memory of others or of arguments."""
        known = {tensor.untyped_storage().data_ptr() for tensor in self._arguments}
        positions = set()
        for position, gradient in enumerate(self._results[1 + len(self._ending.order) :]):
            address = gradient.untyped_storage().data_ptr()
            if address in known:
                positions.add(position)
            known.add(address)
        return positions

    def difference(self, loss: Tensor) -> str:
        """Return how it differs from what the script computed since; "" if equal."""
        ending = self._ending
        tolerance = tolerance_of(ending.weights)
        zero = torch.zeros_like(loss)
        if not are_near([self._results[0]], [loss], [zero], tolerance):
            return "the compiled loss is another"
        number = len(ending.order)
        for real, result in zip(self._reals, self._results[1 : 1 + number], strict=True):
            if real is None:
                continue
            if real.is_floating_point():
                if not are_near([result], [real], [torch.zeros_like(real)], tolerance):
                    return "a compiled result is another"
            elif result.dtype is not real.dtype or not torch.equal(result, real):
                return "a compiled result is another"
        gradients = []
        for weight, before in zip(ending.weights, self._gradients, strict=True):
            if weight.grad is None:
                return "autograd gives a parameter no gradient"
            gradients.append(weight.grad if before is None else weight.grad - before)
        compiled = self._results[1 + number :]
        if not are_near(compiled, gradients, list(map(torch.zeros_like, gradients)), tolerance):
            return "the compiled gradients are others"
        if not are_near(self._copies, ending.buffers, self._buffers_before, tolerance):
            return "the compiled buffers are others"
        return ""


def _draw_again(region: Region) -> list[Tensor]:
    """Return the random numbers that the calls of a region have drawn."""
    states = iter(region.random_states)
    current = torch.get_rng_state()
    numbers = []
    for path in region.path.calls():
        if path.noise:
            torch.set_rng_state(next(states))
            numbers += [noise.draw() for noise in path.noise]
    torch.set_rng_state(current)
    return numbers
