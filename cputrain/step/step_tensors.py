"""The tensors that a step updates, and all other values that its result depends on."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.modules import module as module_hooks

from cputrain.step.batches import layout_of
from cputrain.step.script_values import ScriptValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from torch.optim import Optimizer

HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip

GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
    "_global_backward_pre_hooks",
)  # fmt: skip

STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class CompileError(Exception):
    """A step cannot be compiled; the message says why."""


class ModelAndLoss(nn.Module):
    """A model and its loss, as one module."""

    def __init__(self, model: nn.Module, loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: Any, targets: tuple[Any, ...]) -> Tensor:
        """Return the loss of a batch."""
        if isinstance(inputs, dict):
            output = self.model(**inputs)
        elif isinstance(inputs, tuple | list):
            output = self.model(*inputs)
        else:
            output = self.model(inputs)
        return self.loss(output, *targets)


class StepTensors:
    """Tensors of a model and its optimizer, as they are now, and what is assumed of the rest.

    Raises CompileError.

    Args:
        whole: The model and the loss.
        optimizer: An optimizer of torch.optim, after its first step.
    """

    def __init__(self, whole: ModelAndLoss, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self.parameters: dict[str, nn.Parameter] = dict(whole.named_parameters())
        """Parameters by name."""
        self.buffers: dict[str, Tensor] = dict(whole.named_buffers())
        """Buffers by name."""
        modules = list(whole.modules())
        self._places = [
            (place, name, tensor)
            for module in modules
            for place in (module._parameters, module._buffers)
            for name, tensor in place.items()
        ]
        self._submodules = [
            (module._modules, name, child)
            for module in modules
            for name, child in module._modules.items()
        ]
        self.values = ScriptValues(
            modules, [] if isinstance(whole.loss, nn.Module) else [whole.loss]
        )
        """Plain values of the script that the forward and the loss may read."""
        self._hooks = [
            *(getattr(module, name) for module in modules for name in HOOKS),
            *(getattr(module_hooks, name) for name in GLOBAL_HOOKS),
        ]
        self._flags = [
            (parameter, parameter.requires_grad) for parameter in self.parameters.values()
        ]
        if any(self._hooks) or any(_has_hooks(parameter) for parameter, _ in self._flags):
            raise CompileError("a module or a parameter has a hook")
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
        """Values of the optimizer's state: their parameter, name and value."""
        self.rates = [_rate_tensor(group["lr"]) for group in optimizer.param_groups]
        """Learning rates, as tensors without dimensions."""
        self._rate_values = [group["lr"] for group in optimizer.param_groups]
        self._check()
        self.tensors: list[Tensor] = [*(tensor for _, tensor in self._named()), *self.rates]
        """All of them: parameters, buffers, states, learning rates."""
        self._addresses = list(map(Tensor.data_ptr, self.tensors))
        self._strides = list(map(Tensor.stride, self.tensors))

    def _check(self) -> None:
        optimizer = self._optimizer
        if not type(optimizer).__module__.startswith("torch.optim."):
            raise CompileError(f"{type(optimizer).__name__} is no optimizer of torch.optim")
        optimized = set(map(id, chain.from_iterable(self.group_parameters)))
        for name, parameter in self.parameters.items():
            if parameter.requires_grad and id(parameter) not in optimized:
                raise CompileError(f"{name} needs a gradient, but the optimizer does not have it")
        if optimized - set(map(id, self.parameters.values())):
            raise CompileError("the optimizer has parameters of another model")
        if any(buffer.requires_grad for buffer in self.buffers.values()):
            raise CompileError("a buffer needs a gradient")
        if any(group.get("differentiable") for group in self.groups):
            raise CompileError("the optimizer's step is differentiable")
        for _, name, value in self.states:
            if not isinstance(value, Tensor | type(None)):
                raise CompileError(f"the optimizer's state {name} is no tensor")
        tensors = [tensor for _, tensor in self._named()]
        if any(
            type(tensor) not in {Tensor, nn.Parameter}
            or tensor.layout is not torch.strided
            or not tensor.is_cpu
            for tensor in tensors
        ):
            raise CompileError("not all tensors are dense and on the CPU")
        if len({tensor.untyped_storage().data_ptr() for tensor in tensors}) < len(tensors):
            raise CompileError("tensors of the model or the optimizer share memory")

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled step assumes of these tensors and values."""
        return (
            tuple((name, layout_of(tensor)) for name, tensor in self._named()),
            self.values.key,
            repr(self.groups),
            tuple(map(len, self.group_parameters)),
            tuple((name, type(value)) for _, name, value in self.states),
        )

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors of parameters, buffers and states."""
        yield from self.parameters.items()
        yield from self.buffers.items()
        yield from ((name, value) for _, name, value in self.states if isinstance(value, Tensor))

    def is_current(self) -> bool:
        """Return whether all are as they were; learning rates may be others, and are copied."""
        for place, name, tensor in self._places:
            if place.get(name) is not tensor:
                return False
        for parameter, requires_grad in self._flags:
            if parameter.requires_grad is not requires_grad or _has_hooks(parameter):
                return False
        if not self.values.are_current():
            return False
        for children, name, child in self._submodules:
            if children.get(name) is not child:
                return False
        states = self._optimizer.state
        if len(states) != self._num_states:
            return False
        for parameter, name, value in self.states:
            if states.get(parameter, {}).get(name) is not value:
                return False
        if (  # a script may give a tensor other memory, of another dtype or shape
            list(map(Tensor.data_ptr, self.tensors)) != self._addresses
            or list(map(Tensor.stride, self.tensors)) != self._strides
        ):
            return False
        groups = self._optimizer.param_groups
        if any(self._hooks) or len(groups) != len(self.groups):
            return False
        for number, group in enumerate(groups):
            options = self.groups[number]
            if (
                len(group) != len(options) + 2
                or any(group.get(name, group) != value for name, value in options.items())
                or list(map(id, group["params"])) != list(map(id, self.group_parameters[number]))
            ):
                return False
            rate = group["lr"]
            if rate is not self._rate_values[number]:
                if isinstance(rate, Tensor) or isinstance(self._rate_values[number], Tensor):
                    return False
                self._rate_values[number] = rate
                self.rates[number].fill_(rate)
        return True

    def difference(self) -> str:
        """Return the name of a value that is another now; "" if none is known."""
        if name := self.values.difference():
            return name
        for options, group in zip(self.groups, self._optimizer.param_groups, strict=False):
            for name, value in options.items():
                if group.get(name) != value:
                    return f"the option {name} of the optimizer"
        return ""

    def have_gradients(self) -> bool:
        """Return whether a parameter has a gradient, to which another would be added."""
        return any(parameter.grad is not None for parameter in self.parameters.values())


def _has_hooks(parameter: Any) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _rate_tensor(rate: float | Tensor) -> Tensor:
    """Return a learning rate in the precision that Python computes with."""
    if isinstance(rate, Tensor):
        return rate
    return torch.tensor(rate, dtype=torch.float64, device="cpu")
