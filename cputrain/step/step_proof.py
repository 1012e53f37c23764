"""Prove a compiled step: one step on copies of all tensors, beside an eager one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch.optim import Optimizer

    from cputrain.step.compiled_step import Compiled
    from cputrain.step.step_tensors import ModelAndLoss, StepTensors

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference of updates, relative to the norm of all; of other dtypes REDUCED."""

REDUCED = 0.05
"""Where a dtype, or autocast, has few digits."""


class StepProof:
    """The numbers of a compiled step, taken on copies with the random numbers of the next step.

    Args:
        compiled: The compiled step.
        state: Tensors before the step.
        batch: Tensors of a batch.
    """

    def __init__(self, compiled: Compiled, state: StepTensors, batch: Sequence[Tensor]) -> None:
        self._names = [*state.model.parameters, *state.model.buffers]
        self._before = [tensor.detach().clone() for tensor in state.tensors]
        self._after = [tensor.clone() for tensor in self._before]
        random_state = torch.get_rng_state()
        with torch.no_grad():
            self._results = compiled([*self._after, *batch])
        self._random_state = torch.get_rng_state()
        torch.set_rng_state(random_state)
        self._states = state.optimizer.states

    def difference(self, loss: Tensor, whole: ModelAndLoss, optimizer: Optimizer) -> str:
        """Return how the compiled step differs from the eager step since then; "" if equal."""
        named = dict(whole.named_parameters()) | dict(whole.named_buffers())
        if list(named) != self._names:
            return "the forward registers parameters or buffers"
        values = [optimizer.state[parameter].get(name) for parameter, name, _ in self._states]
        current = [*named.values(), *(value for value in values if isinstance(value, Tensor))]
        tolerance = REDUCED if torch.is_autocast_enabled("cpu") else tolerance_of(named.values())
        if not torch.equal(self._random_state, torch.get_rng_state()):
            return "the compiled step draws other random numbers"
        if not are_near([self._results[0]], [loss], [torch.zeros_like(loss)], tolerance):
            return "the loss of the compiled step is another"
        number = len(current)
        if not are_near(self._after[:number], current, self._before[:number], tolerance):
            return "the compiled step updates parameters, buffers or states otherwise"
        return ""


def tolerance_of(tensors: Iterable[Tensor]) -> float:
    """Return the largest difference that arithmetic in another order makes."""
    dtypes = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return max((TOLERANCES.get(dtype, REDUCED) for dtype in dtypes), default=REDUCED)


def are_near(
    computed: Sequence[Tensor],
    expected: Sequence[Tensor],
    before: Sequence[Tensor],
    tolerance: float,
) -> bool:
    """Return whether changes since before agree, in the norm of all together."""
    distance = change = size = 0.0
    for result, wanted, old in zip(computed, expected, before, strict=True):
        if result.shape != wanted.shape:
            return False
        result, wanted, old = (tensor.detach().double() for tensor in (result, wanted, old))
        distance += float((result - wanted).square().sum())
        change += float((wanted - old).square().sum())
        size += float(wanted.square().sum())
    return distance <= tolerance**2 * change + 1e-13 * size
