"""The step of an optimizer as a function of tensors."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from torch.optim import Optimizer

    from cputrain.step.optimizer_tensors import OptimizerTensors


class UpdateFunction:
    """The step of an optimizer, for other tensors than its own.

    Args:
        optimizer: The optimizer.
        state: Its tensors and options.
        is_fused: Whether the step is one operator for all parameters, if the optimizer has one.
    """

    def __init__(self, optimizer: Optimizer, state: OptimizerTensors, *, is_fused: bool) -> None:
        self._optimizer, self._state = optimizer, state
        self._is_fused = is_fused and all("fused" in group for group in state.groups)

    def __call__(self, parameters: Mapping[int, Tensor], tensors: Sequence[Tensor]) -> None:
        """Update parameters by their gradients.

        Args:
            parameters: In place of the optimizer's parameters, by the latters' id.
            tensors: In place of the tensors of its state, and of its learning rates.
        """
        state, original = self._state, self._optimizer
        remaining = iter(tensors)
        copies: defaultdict[Tensor, dict[str, Any]] = defaultdict(dict)
        counts = []
        for parameter, name, original_value in state.states:
            value = next(remaining) if isinstance(original_value, Tensor) else None
            if value is not None and not value.dim() and not self._is_fused:
                counts.append((value, value.double()))  # as Python computes
                value = counts[-1][1]
            copies[parameters[id(parameter)]][name] = value
        optimizer = object.__new__(type(original))
        optimizer.__dict__.update(vars(original))
        optimizer.state = copies
        optimizer.param_groups = [
            group | {
                "params": [parameters[id(parameter)] for parameter in members],
                "lr": rate,
                **_options(group, is_fused=self._is_fused),
            }
            for group, members, rate in zip(
                state.groups, state.group_parameters, remaining, strict=True
            )
        ]  # fmt: skip
        step: Any = type(original).step
        with torch.no_grad():
            getattr(step, "__wrapped__", step)(optimizer)  # without the hooks of steps
            for value, count in counts:
                value.copy_(count)


def _options(group: dict[str, Any], *, is_fused: bool) -> dict[str, bool]:
    """Return options for an implementation that can be traced."""
    options = {"foreach": False, "fused": is_fused, "capturable": not is_fused}
    return {name: value for name, value in options.items() if name in group}


def laid_out(gradient: Tensor, parameter: Tensor) -> Tensor:
    """Return a gradient with the strides that autograd gives it: those of its parameter."""
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
