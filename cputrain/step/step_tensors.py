"""The tensors that a step updates, and all other values that its result depends on."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from cputrain.step.batches import layout_of
from cputrain.step.model_tensors import CompileError, ModelTensors, check_memory
from cputrain.step.optimizer_tensors import OptimizerTensors

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from torch.optim import Optimizer


class ModelAndLoss(nn.Module):
    """A model and its loss, as one module."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model, self.loss = model, loss

    def forward(self, inputs: Any, targets: tuple[Any, ...]) -> Any:
        """Return what the loss function does for a batch."""
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
        self.model = ModelTensors(whole, [] if isinstance(whole.loss, nn.Module) else [whole.loss])
        self.optimizer = OptimizerTensors(optimizer)
        optimized = set(map(id, chain.from_iterable(self.optimizer.group_parameters)))
        for name, parameter in self.model.parameters.items():
            if parameter.requires_grad and id(parameter) not in optimized:
                raise CompileError(f"{name} needs a gradient, but the optimizer does not have it")
        if optimized - set(map(id, self.model.parameters.values())):
            raise CompileError("the optimizer has parameters of another model")
        check_memory([*self.model.tensors, *self.optimizer.tensors])
        self.tensors: list[Tensor] = [
            *self.model.tensors, *self.optimizer.tensors, *self.optimizer.rates
        ]  # fmt: skip
        """All of them: parameters, buffers, attributes, states, learning rates."""
        self.changed: list[Tensor] = [
            *self.model.parameters.values(), *self.model.buffers.values(), *self.optimizer.tensors
        ]  # fmt: skip
        """Those that a step may change."""

    @property
    def key(self) -> tuple[Any, ...]:
        """Return what a compiled step assumes of these tensors and values."""
        return (
            self.model.key, self.optimizer.key, tuple(map(layout_of, self.optimizer.tensors))
        )  # fmt: skip

    def is_current(self) -> bool:
        """Return whether all are as they were; learning rates may be others, and are copied."""
        return self.model.is_current() and self.optimizer.is_current()

    def difference(self) -> str:
        """Return the name of a value that is another now; "" if none is known."""
        return self.model.values.difference() or self.optimizer.difference()

    def gradients(self) -> list[Tensor | None] | None:
        """Return the gradients of the parameters, to which others are to be added.

        Return None unless each is laid out as its parameter, in memory of its own.
        """
        gradients = [parameter.grad for parameter in self.model.parameters.values()]
        dense = [gradient for gradient in gradients if gradient is not None]
        if not dense:
            return gradients
        if any(
            gradient is not None
            and (
                type(gradient) is not Tensor
                or gradient.layout is not torch.strided
                or gradient.requires_grad
                or gradient.stride() != parameter.stride()
            )
            for gradient, parameter in zip(gradients, self.model.parameters.values(), strict=True)
        ):
            return None
        addresses = {gradient.untyped_storage().data_ptr() for gradient in dense}
        return gradients if len(addresses) == len(dense) else None
