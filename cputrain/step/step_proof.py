"""Prove a compiled step: one step on copies of all tensors, beside an eager one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cputrain.step.losses import Losses
from cputrain.step.model_tensors import CompileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from torch.optim import Optimizer

    from cputrain.step.compiled_step import Compiled
    from cputrain.step.step_tensors import ModelAndLoss, StepTensors
    from cputrain.step.traced_step import StepFunction

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}
"""Largest difference of updates, relative to the norm of all; of other dtypes REDUCED."""

REDUCED = 0.05
"""Where a dtype, or autocast, has few digits."""


def run_first(compiled: Compiled, arguments: list[Tensor]) -> Sequence[Tensor]:
    """Return the results of a compiled function that never ran before.

    Raises CompileError if it fails.
    """
    try:
        with torch.no_grad():
            return compiled(arguments)
    except (RuntimeError, IndexError, TypeError, NotImplementedError) as error:
        text = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise CompileError(f"what was compiled fails ({text})") from error


class StepProof:
    """The numbers of a compiled step, taken on copies with the random numbers of the next step.

    Args:
        compiled: The compiled step.
        function: The step that was compiled.
        state: Tensors before the step.
        gradients: Gradients of the parameters before it.
        batch: Tensors of a batch.
    """

    def __init__(
        self,
        compiled: Compiled,
        function: StepFunction,
        state: StepTensors,
        gradients: Sequence[Tensor | None],
        batch: Sequence[Tensor],
    ) -> None:
        self._function = function
        self._names = [*state.model.parameters, *state.model.buffers]
        self._attributes = list(state.model.attributes.values())
        self._gradients = [None if each is None else each.clone() for each in gradients]
        self._before = [tensor.detach().clone() for tensor in state.tensors]
        self._after = [tensor.clone() for tensor in self._before]
        self._added_to = [each.clone() for each in self._gradients if each is not None]
        random_state = torch.get_rng_state()
        self._arguments = [*self._after, *self._added_to, *batch]
        self._results = run_first(compiled, self._arguments)
        self._random_state = torch.get_rng_state()
        torch.set_rng_state(random_state)
        self._states = state.optimizer.states

    def shared(self) -> set[int]:
        """Return the positions of results in the memory of others or of arguments."""
        return shared_positions(self._results, self._arguments)

    def difference(self, losses: Any, whole: ModelAndLoss, optimizer: Optimizer) -> str:
        """Return how the compiled step differs from the eager step since then; "" if equal.

        Args:
            losses: What the eager step has returned.
            whole: The model and the loss after it.
            optimizer: The optimizer after it.
        """
        named = dict(whole.named_parameters()) | dict(whole.named_buffers())
        if list(named) != self._names:
            return "the forward registers parameters or buffers"
        values = [optimizer.state[parameter].get(name) for parameter, name, _ in self._states]
        states = [value for value in values if isinstance(value, Tensor)]
        current = [*named.values(), *self._attributes, *states]
        tolerance = REDUCED if torch.is_autocast_enabled("cpu") else tolerance_of(named.values())
        if not torch.equal(self._random_state, torch.get_rng_state()):
            return "the compiled step draws other random numbers"
        expected = Losses(losses).tensors
        computed = self._results[: len(expected)]
        if not all(
            are_near([result], [loss], [torch.zeros_like(loss)], tolerance)
            for result, loss in zip(computed, expected, strict=True)
        ):
            return "the loss of the compiled step is another"
        number = len(current)
        if not are_near(self._after[:number], current, self._before[:number], tolerance):
            return "the compiled step updates parameters, buffers or states otherwise"
        if not self._has_same_gradients(list(whole.parameters()), len(expected), tolerance):
            return "the compiled step computes other gradients"
        return ""

    def _has_same_gradients(
        self, parameters: list[Tensor], num_losses: int, tolerance: float
    ) -> bool:
        """Return whether gradients are as those of the eager step, if it has kept them."""
        function = self._function
        if function.updates:
            return True
        new, added = iter(self._results[num_losses:]), iter(self._added_to)
        computed, expected, before = [], [], []
        for parameter, old, gets in zip(
            parameters, self._gradients, function.gets_gradient, strict=True
        ):
            gradient = parameter.grad
            if gradient is None:
                if old is not None or gets:
                    return False
                continue
            if old is None and not gets:
                return False
            computed.append(next(new) if old is None else next(added))
            expected.append(gradient)
            before.append(torch.zeros_like(gradient) if old is None else old)
        return are_near(computed, expected, before, tolerance)


def shared_positions(results: Sequence[Tensor], arguments: Sequence[Tensor]) -> set[int]:
    """Return the positions of results in the memory of earlier ones or of arguments."""
    known = {tensor.untyped_storage().data_ptr() for tensor in arguments}
    positions = set()
    for position, result in enumerate(results):
        address = result.untyped_storage().data_ptr()
        if address in known:
            positions.add(position)
        known.add(address)
    return positions


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
