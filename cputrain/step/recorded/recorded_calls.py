"""Recorded calls as functions of tensors, with their gradients or one of their results."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cputrain.step.model_tensors import CompileError
from cputrain.step.recorded.arguments import describe_result, new_tensors, restore
from cputrain.step.recorded.noise import NoiseMode
from cputrain.step.traced_update import laid_out

if TYPE_CHECKING:
    from typing import Any

    from cputrain.step.recorded.noise import Noise
    from cputrain.step.recorded.path import Ending, Path, RecordedFunction


class RecordedCalls:
    """The calls of a path, made again with other tensors.

    Args:
        path: The calls.
        function: What is compiled for them.
        num_batch: Number of tensors of a batch.
    """

    def __init__(self, path: Path, function: RecordedFunction, num_batch: int) -> None:
        self._path, self._function, self._num_batch = path, function, num_batch
        self.noise: list[list[Noise]] = []
        """What each call draws, if there were no random numbers among the tensors."""

    def _call_all(self, tensors: dict[int, Tensor], batch: tuple[Tensor, ...]) -> list[Tensor]:
        """Return the results.

        Args:
            tensors: In place of weights and buffers, by the latters' id.
            batch: Tensors of a batch, and random numbers.
        """
        numbers = batch[self._num_batch :]
        supply = iter(numbers) if numbers else None
        results: list[Tensor] = []
        self.noise = []
        for path in self._path.calls():
            with NoiseMode(supply) as mode:
                value = _call(path, batch, results, tensors)
            results += new_tensors(value, path.result)
            self.noise.append(mode.drawn)
        return results

    def _leaves(self, tensors: tuple[Tensor, ...]) -> tuple[dict[int, Tensor], list[Tensor]]:
        """Return the first tensors by the ids of those that they stand for, and the weights."""
        function = self._function
        named = {id(each): tensor for each, tensor in zip(function.tensors, tensors, strict=False)}
        leaves = [
            named[id(weight)].detach().requires_grad_(weight.requires_grad)
            for weight in function.weights
        ]
        named |= {id(weight): leaf for weight, leaf in zip(function.weights, leaves, strict=True)}
        return named, leaves


class GradientFunction(RecordedCalls):
    """The calls of a path, and the gradients of one result.

    Args:
        path: The calls.
        ending: What the function returns, and for which tensors.
        loss: Index of the result whose gradients are taken.
        num_batch: Number of tensors of a batch.
    """

    def __init__(self, path: Path, ending: Ending, loss: int, num_batch: int) -> None:
        super().__init__(path, ending, num_batch)
        self._loss, self._order = loss, ending.order
        self.has_gradient: list[bool] = []
        """Whether each of the weights has a gradient."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the loss, the results that are asked for, and the gradients.

        Args:
            tensors: Those of the ending, those of a batch, and random numbers.
        """
        named, leaves = self._leaves(tensors)
        results = self._call_all(named, tensors[len(self._function.tensors) :])
        loss = results[self._loss]
        trained = [leaf for leaf in leaves if leaf.requires_grad]
        taken = iter(torch.autograd.grad(loss, trained, allow_unused=True))
        gradients = [next(taken) if leaf.requires_grad else None for leaf in leaves]
        self.has_gradient = [gradient is not None for gradient in gradients]
        return (
            loss.detach(),
            *(results[index].detach() for index in self._order),
            *(
                laid_out(gradient, leaf)
                for gradient, leaf in zip(gradients, leaves, strict=True)
                if gradient is not None
            ),
        )


class ReadFunction(RecordedCalls):
    """The calls of a path, and one of their results; it changes no buffers.

    Args:
        path: The calls.
        reading: Its tensors.
        index: Index of the result.
        num_batch: Number of tensors of a batch.
    """

    def __init__(self, path: Path, reading: RecordedFunction, index: int, num_batch: int) -> None:
        super().__init__(path, reading, num_batch)
        self._index = index

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the result.

        Args:
            tensors: Those of the reading, those of a batch, and random numbers.
        """
        named, _ = self._leaves(tensors)
        for buffer in self._function.buffers:
            named[id(buffer)] = named[id(buffer)].clone()
        results = self._call_all(named, tensors[len(self._function.tensors) :])
        return (results[self._index].detach().clone(),)


def _call(path: Path, batch: Any, results: list[Tensor], tensors: dict[int, Tensor]) -> Any:
    key = path.key
    assert key is not None
    args = restore(key.args, batch, results, tensors)
    kwargs = restore(key.kwargs, batch, results, tensors)
    with torch.set_grad_enabled(key.is_grad_enabled):
        if key.model is None:
            value = key.function(*args, **kwargs)
        else:
            model = key.model
            groups = (model.parameters, model.buffers, model.attributes)
            named = {name: tensors[id(each)] for group in groups for name, each in group.items()}
            value = model.call(key.function(), named, args, kwargs)
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
