"""The states of an optimizer, and its options."""

from __future__ import annotations

import weakref
from itertools import chain
from operator import is_
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cputrain.step.model_tensors import CompileError, TensorMemory

if TYPE_CHECKING:
    from typing import Any

    from torch.optim import Optimizer

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class OptimizerTensors:
    """Tensors of an optimizer's state and options as they are now.

    Raises CompileError.

    Args:
        optimizer: An optimizer of torch.optim, after its first step.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self._get_optimizer = weakref.ref(optimizer)  # what is kept for it would keep it
        self.groups = [
            {name: value for name, value in group.items() if name not in {"params", "lr"}}
            for group in optimizer.param_groups
        ]
        """Options of the parameter groups without their learning rates."""
        self.group_parameters = [list(group["params"]) for group in optimizer.param_groups]
        """Parameters of each group."""
        self._num_states = len(optimizer.state)
        self.states = [
            (parameter, name, value)
            for parameter in chain.from_iterable(self.group_parameters)
            for name, value in optimizer.state.get(parameter, {}).items()
        ]
        """Values of the state: their parameter, name and value."""
        self._dicts = [(parameter, values) for parameter, values in optimizer.state.items()]
        self._places = [
            (values, name, value) for _, values in self._dicts for name, value in values.items()
        ]
        self.rates = [_rate_tensor(group["lr"]) for group in optimizer.param_groups]
        """Learning rates, as tensors without dimensions."""
        self._rate_values = [group["lr"] for group in optimizer.param_groups]
        if not type(optimizer).__module__.startswith("torch.optim."):
            raise CompileError(f"{type(optimizer).__name__} is no optimizer of torch.optim")
        if any(group.get("differentiable") for group in self.groups):
            raise CompileError("the optimizer's step is differentiable")
        for _, name, value in self.states:
            if not isinstance(value, Tensor | type(None)):
                raise CompileError(f"the optimizer's state {name} is no tensor")
        self.tensors = [value for _, _, value in self.states if isinstance(value, Tensor)]
        """Tensors of the state."""
        self._memory = TensorMemory([*self.tensors, *self.rates])

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the options and the kinds of values in the state."""
        return (
            repr(self.groups),
            tuple(map(len, self.group_parameters)),
            tuple((name, type(value)) for _, name, value in self.states),
        )

    def is_current(self) -> bool:
        """Return whether all are as they were; learning rates may be others, and are copied."""
        optimizer = self._get_optimizer()
        if optimizer is None:
            return False
        states = optimizer.state
        if len(states) != self._num_states:
            return False
        for parameter, values in self._dicts:
            if states.get(parameter) is not values:
                return False
        for values, name, value in self._places:
            if values.get(name) is not value:
                return False
        groups = optimizer.param_groups
        if len(groups) != len(self.groups):
            return False
        for number, group in enumerate(groups):
            options = self.groups[number]
            if len(group) != len(options) + 2 or any(
                group.get(name, group) != value for name, value in options.items()
            ):
                return False
            members = self.group_parameters[number]
            if len(group["params"]) != len(members) or not all(map(is_, group["params"], members)):
                return False
            rate = group["lr"]
            if rate is not self._rate_values[number]:
                if isinstance(rate, Tensor) or isinstance(self._rate_values[number], Tensor):
                    return False
                self._rate_values[number] = rate
                self.rates[number].fill_(rate)
        return self._memory.is_current()

    def difference(self) -> str:
        """Return the name of an option that is another now; "" if none is known."""
        groups = getattr(self._get_optimizer(), "param_groups", ())
        for options, group in zip(self.groups, groups, strict=False):
            for name, value in options.items():
                if group.get(name) != value:
                    return f"the option {name} of the optimizer"
        return ""


def _rate_tensor(rate: float | Tensor) -> Tensor:
    """Return a learning rate in the precision that Python computes with."""
    if isinstance(rate, Tensor):
        return rate
    return torch.tensor(rate, dtype=torch.float64, device="cpu")


def is_of_cputrain(hook: Any) -> bool:
    """Return whether a hook is one of this package."""
    return str(getattr(hook, "__module__", "")).startswith("cputrain.")
