"""Gradients of several networks as one function of stacked tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from cputrain.step.model_tensors import CompileError
from cputrain.step.traced_update import laid_out

if TYPE_CHECKING:
    from cputrain.step.batches import BatchLayout
    from cputrain.step.model_tensors import ModelTensors
    from cputrain.step.step_tensors import ModelAndLoss


class StackedGradients:
    """Losses and gradients of several networks as a function of stacked tensors.

    Args:
        whole: One of the models, and the loss.
        state: Its tensors.
        layout: Layout of the batch of one model.
        has_own_batches: Whether batches are stacked, too.
    """

    def __init__(
        self,
        whole: ModelAndLoss,
        state: ModelTensors,
        layout: BatchLayout,
        *,
        has_own_batches: bool,
    ) -> None:
        self._whole, self._state, self._layout = whole, state, layout
        self._has_own_batches = has_own_batches

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the losses, and gradients of the parameters that need them.

        Args:
            tensors: Parameters and buffers, stacked, and tensors of a batch.
        """
        number = len(self._state.tensors)
        dim = 0 if self._has_own_batches else None
        dims = (*(0 for _ in range(number)), *(dim for _ in tensors[number:]))
        results: tuple[Tensor, ...] = vmap(self._compute, in_dims=dims)(*tensors)
        return results

    def _compute(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        state = self._state
        named = dict(zip((*state.parameters, *state.buffers), tensors, strict=False))
        batch = self._layout.fill(tensors[len(state.tensors) :])
        wanted = {
            name: named[name]
            for name, parameter in state.parameters.items()
            if parameter.requires_grad
        }

        def loss_of(parameters: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
            buffers = {name: named[name].clone() for name in state.buffers}
            loss = functional_call(self._whole, {**named, **buffers, **parameters}, batch)
            if not isinstance(loss, Tensor) or loss.numel() != 1:
                raise CompileError("the loss is no tensor of one number")
            return loss.reshape(()), buffers

        gradients, (loss, buffers) = grad_and_value(loss_of, has_aux=True)(wanted)
        for name, buffer in buffers.items():
            named[name].copy_(buffer)
        return (
            loss.detach(),
            *(laid_out(gradients[name], parameter) for name, parameter in wanted.items()),
        )
