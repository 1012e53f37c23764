"""Compile what recorded regions compute."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cputrain.runtime.root_forward import within_call
from cputrain.step.background import compile_or_replay
from cputrain.step.model_tensors import CompileError
from cputrain.step.recorded.recorded_calls import GradientFunction, ReadFunction
from cputrain.step.script_values import ScriptValues
from cputrain.step.traced_step import trace

if TYPE_CHECKING:
    from torch import Tensor
    from torch.fx import GraphModule

    from cputrain.step.recorded.path import Ending, Path, Reading, RecordedFunction
    from cputrain.step.recorded.region import Region


def compile_ending(region: Region, loss: int, ending: Ending) -> None:
    """Compile the calls of a region with the gradients of its loss. Raises CompileError."""
    path, batch = region.path, region.batch
    _gather(ending, path, region)
    ending.order = sorted(ending.returned - {loss})
    function = GradientFunction(path, ending, loss, len(batch))
    tensors = [*ending.tensors, *batch]
    graph = _trace(function, path, tensors)
    noise = function.noise
    if region.random_states:
        if len(list(filter(None, noise))) != len(region.random_states):
            raise CompileError("a call draws random numbers that are not seen")
        tensors += [each.memory() for drawn in noise for each in drawn]
        graph = _trace(function, path, tensors)
    for call, drawn in zip(path.calls(), noise, strict=True):
        call.noise = drawn
    ending.trained = [
        weight for weight, has in zip(ending.weights, function.has_gradient, strict=True) if has
    ]
    ending.future = compile_or_replay(graph, tensors)


def compile_reading(region: Region, path: Path, index: int, reading: Reading) -> None:
    """Compile the calls of a path for one of their results. Raises CompileError.

    Args:
        region: A region with these calls and others, for which an ending was compiled.
        path: The calls.
        index: Index of the result.
        reading: What is compiled.
    """
    batch = region.batch[: region.read_values[path, index].num_batch]
    _gather(reading, path, region)
    numbers = [each.memory() for call in path.calls() for each in call.noise]
    tensors = [*reading.tensors, *batch, *numbers]
    function = ReadFunction(path, reading, index, len(batch))
    reading.future = compile_or_replay(_trace(function, path, tensors), tensors)


def _gather(function: RecordedFunction, path: Path, region: Region) -> None:
    """Have a function take the tensors of the models of a path, and the region's weights."""
    models = {id(key.model): key.model for key in path.call_keys() if key.model}
    weights = {
        id(weight): weight for model in models.values() for weight in model.parameters.values()
    } | region.weights
    buffers = {id(each): each for model in models.values() for each in model.buffers.values()}
    others = {id(each): each for model in models.values() for each in model.attributes.values()}
    function.weights, function.buffers = list(weights.values()), list(buffers.values())
    function.attributes = list(others.values())
    function.tensors = [*function.weights, *function.buffers, *function.attributes]


def _trace(
    function: GradientFunction | ReadFunction, path: Path, tensors: list[Tensor]
) -> GraphModule:
    models = [key.function() for key in path.call_keys() if key.model]
    modules = [module for model in models for module in model.modules()]
    with within_call():
        return trace(function, tensors, ScriptValues(modules, ()))
