"""Recorded calls and their gradients as a function of tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call

from cputrain.step.model_tensors import CompileError
from cputrain.step.recorded.arguments import describe_result, new_tensors, restore
from cputrain.step.recorded.noise import NoiseMode
from cputrain.step.traced_update import laid_out

if TYPE_CHECKING:
    from typing import Any

    from cputrain.step.recorded.noise import Noise
    from cputrain.step.recorded.path import Ending, Path


class GradientFunction:
    """The calls of a path, and the gradients of one result.

    Args:
        path: The calls.
        loss: Index of the result whose gradients are taken.
        ending: What the function returns, and for which tensors.
        num_batch: Number of tensors of a batch.
    """

    def __init__(self, path: Path, loss: int, ending: Ending, num_batch: int) -> None:
        self._path, self._loss, self._ending = path, loss, ending
        self._num_batch = num_batch
        self.noise: list[list[Noise]] = []
        """What each call draws, if the function was called without random numbers."""
        self.has_gradient: list[bool] = []
        """Whether each of the weights has a gradient."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, the results that are asked for, and the gradients.

        Args:
            tensors: Those of the ending, those of a batch, and random numbers.
        """
        ending = self._ending
        arguments: dict[int, Tensor] = {}
        for original, tensor in zip(ending.tensors, tensors, strict=False):
            arguments[id(original)] = tensor
        for weight in ending.weights:
            leaf = arguments[id(weight)].detach().requires_grad_(weight.requires_grad)
            arguments[id(weight)] = leaf
        start = len(ending.tensors)
        batch, numbers = (
            tensors[start : start + self._num_batch],
            tensors[start + self._num_batch :],
        )
        supply = iter(numbers) if numbers else None
        results: list[Tensor] = []
        self.noise = []
        for path in self._path.calls():
            with NoiseMode(supply) as mode:
                value = self._call(path, batch, results, arguments)
            results += new_tensors(value, path.result)
            self.noise.append(mode.drawn)
        loss = results[self._loss]
        wanted = [arguments[id(weight)] for weight in ending.weights]
        trained = [weight for weight in wanted if weight.requires_grad]
        taken = iter(torch.autograd.grad(loss, trained, allow_unused=True))
        gradients = [next(taken) if weight.requires_grad else None for weight in wanted]
        self.has_gradient = [gradient is not None for gradient in gradients]
        return (
            loss.detach(),
            *(results[index].detach() for index in ending.order),
            *(
                laid_out(gradient, weight)
                for gradient, weight in zip(gradients, wanted, strict=True)
                if gradient is not None
            ),
        )

    def _call(
        self, path: Path, batch: Any, results: list[Tensor], arguments: dict[int, Tensor]
    ) -> Any:
        key = path.key
        assert key is not None
        args = restore(key.args, batch, results, arguments)
        kwargs = restore(key.kwargs, batch, results, arguments)
        with torch.set_grad_enabled(key.is_grad_enabled):
            if key.model is None:
                value = key.function(*args, **kwargs)
            else:
                tensors = {
                    name: arguments[id(tensor)]
                    for name, tensor in (*key.model.parameters.items(), *key.model.buffers.items())
                }
                value = functional_call(key.function, tensors, args, kwargs)
        result = describe_result(value, lambda tensor: _index_of(tensor, results), is_traced=True)
        if _without_names(result) != _without_names(path.result):
            raise CompileError("a call returns something else when it is traced")
        return value


def _index_of(tensor: Tensor, results: list[Tensor]) -> int | None:
    return next((index for index, result in enumerate(results) if result is tensor), None)


def _without_names(result: Any) -> Any:
    """Return the description of a result without the names of autograd's functions."""
    if hasattr(result, "members"):
        return result._replace(members=tuple(map(_without_names, result.members)))
    return result._replace(grad_name=bool(result.grad_name)) if hasattr(result, "dtype") else result
