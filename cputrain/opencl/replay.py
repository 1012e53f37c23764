"""Replay: run an operator's recorded kernel launches again, for tensors of the same metadata.

The Python of a kernel checks dtypes and shapes, which takes longer than enqueueing. So the launches
of the second and the third call with the same key are recorded; if both traces are equal, later
calls replay them and run no other Python. Operators that read values are never replayed, and
composite operators are replayed by their parts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from cputrain.opencl.alias_info import is_mutating
from cputrain.opencl.device import UploadStats, raw_buffer
from cputrain.opencl.fallback_policy import run_by_policy
from cputrain.opencl.table import KERNELS
from cputrain.opencl.tensor import OclTensor
from cputrain.opencl.trace import TRACING, LaunchRecorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cputrain.opencl.device import DeviceMemory
    from cputrain.opencl.tensor import TensorMeta

    Run = Callable[[Any, Any, Any], Any]

PLAIN_TYPES = frozenset(
    {int, type(None), str, torch.dtype, torch.device, torch.memory_format, torch.layout}
)
"""Types of arguments that can be part of a key as they are."""

INT_ONLY = frozenset({int})
"""Types of the elements of a list that can be part of a key as it is."""

MAX_ENTRIES = 1 << 13
"""Maximum number of keys in the cache."""

MAX_ATTEMPTS = 3
"""Attempts to trace a call: a one-off event, such as a finalizer, may break a trace."""

NEVER = MAX_ATTEMPTS + 1
"""Number of attempts after which a call is not traced again."""

_cache: dict[Any, Replay | LaunchRecorder | int] = {}
"""By key: the replay, the first trace, or the number of attempts (`NEVER`: do not trace)."""


def _extend_key(values: Iterable[Any], key: list[Any], tensors: list[OclTensor]) -> bool:
    """Append the values to the key and tensors; return False if an argument has no key.

    Calls with equal keys launch the same kernels.
    """
    for value in values:
        value_type = type(value)
        if value_type is OclTensor:
            key.append(value.metadata)
            tensors.append(value)
        elif value_type in PLAIN_TYPES:
            key.append(value)
        elif value_type is list or value_type is tuple:
            if INT_ONLY.issuperset(map(type, value)):
                key.append(tuple(value))
            else:
                key.append(len(value))
                if not _extend_key(value, key, tensors):
                    return False
        elif value_type is float or value_type is bool:
            key.append((value_type, value or str(value)))  # (tell 1.0 from 1, and -0.0 from 0.0)
        else:
            return False
    return True


def run_or_replay(run: Run, run_on_cpu: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """Return an operator's result, by replay if its launches are known, else by `run`."""
    key: list[Any] = [id(func), torch.get_default_dtype()]  # (operators are never freed)
    tensors: list[OclTensor] = []
    if kwargs:
        key += kwargs
    if (
        TRACING.recorder is not None  # called within an operator that is being traced
        or not _extend_key(args, key, tensors)
        or (kwargs and not _extend_key(kwargs.values(), key, tensors))
    ):
        return run(func, args, kwargs)
    call = tuple(key)
    if UploadStats.has_host_dirty:
        return run_by_policy(
            lambda: _run_on_device(run, func, args, kwargs, call, tensors),
            lambda: run_on_cpu(func, args, kwargs), func, call, tensors,
        )  # fmt: skip
    return _run_on_device(run, func, args, kwargs, call, tensors)


def _run_on_device(
    run: Run, func: Any, args: Any, kwargs: Any, call: Any, tensors: Sequence[OclTensor]
) -> Any:
    entry = _cache.get(call, 0)
    if isinstance(entry, Replay):
        result = entry.replay(tensors)
        if result is NotImplemented:  # these tensors alias each other differently
            result = _run_on_device(
                run, func, args, kwargs, (call, *_alias_pattern(tensors)), tensors
            )
        return result
    if entry == 0 or entry == NEVER:
        if not entry:
            _check_one_device(func, tensors)
            if len(_cache) >= MAX_ENTRIES:
                _cache.clear()
            _cache[call] = NEVER if is_composite(func) else 1
        return run(func, args, kwargs)
    recorder = TRACING.recorder = LaunchRecorder([raw_buffer(tensor.memory) for tensor in tensors])
    try:
        result = run(func, args, kwargs)
    finally:
        TRACING.recorder = None
    recipe = None if recorder.is_broken else _recipe_of(result, tensors, recorder)
    if recipe is None:
        _cache[call] = entry + 1 if isinstance(entry, int) else NEVER
    elif isinstance(entry, LaunchRecorder) and entry.is_equal_to(recorder):
        _cache[call] = Replay(func, tensors, recorder, recipe)
    else:
        _cache[call] = recorder.drop_references()
    return result


def _check_one_device(func: Any, tensors: Sequence[OclTensor]) -> None:
    """Raise torch's error unless all tensors are on one device; copies are exempt."""
    names = {tensor.memory.device.name_in_torch for tensor in tensors}
    if len(names) > 1 and "copy" not in func.name():
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(names))}!"
        )


@cache
def is_composite(func: Any) -> bool:
    """Return whether an operator without a kernel is composite, as seen with autograd off."""
    return func not in KERNELS and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )


class Replay:
    """The recorded launches and allocations of a call, ready to run with other tensors."""

    def __init__(
        self, func: Any, tensors: Sequence[OclTensor], recorder: LaunchRecorder, recipe: Any
    ) -> None:
        pattern = _alias_pattern(tensors)
        is_plain = not is_mutating(func) and pattern == list(range(len(tensors)))
        self._alias_pattern = None if is_plain else pattern
        self._draws = tuple((number, *draw) for number, draw in recorder.draws.items())
        recorder.drop_references()
        self._recipe = recipe
        self._single: tuple[int, TensorMeta] | None = (
            recipe if _is_allocated(recipe, len(tensors)) else None
        )
        self._placeholders = [None] * (len(recorder.allocations) + 2 * len(self._draws))
        self._steps, self._result_allocations = _launch_steps(recorder, set(_numbers_in(recipe)))

    def replay(self, tensors: Sequence[OclTensor]) -> Any:
        """Run the launches for these tensors and return the result.

        Return NotImplemented if they alias each other in another way than the recorded ones.
        """
        if self._alias_pattern is not None and _alias_pattern(tensors) != self._alias_pattern:
            return NotImplemented
        values: list[Any] = [tensor.memory.buffer for tensor in tensors] if self._steps else []
        values += self._placeholders
        memories: dict[int, DeviceMemory] = {}
        for number, generator, count in self._draws:
            values[number], values[number + 1] = generator.reserve(count)
        for (
            allocations,
            device,
            kernel,
            global_size,
            local_size,
            arguments,
            fills,
            frees,
        ) in self._steps:
            for number, memory_device, size, used in allocations:
                memory = memories[number] = memory_device.allocate(size, used)
                values[number] = memory.buffer
            launch_arguments = arguments.copy()
            for index, number in fills:
                launch_arguments[index] = values[number]
            device.run(kernel, global_size, local_size, launch_arguments)
            for number in frees:
                del memories[number]
        for number, memory_device, size, used in self._result_allocations:
            memories[number] = memory_device.allocate(size, used)
        if self._single is not None:
            number, meta = self._single
            return meta.tensor_in(memories[number])
        return _build_result(self._recipe, tensors, memories)


def _alias_pattern(tensors: Sequence[OclTensor]) -> list[int]:
    """Return, for each tensor, the index of the first tensor in the same memory."""
    firsts: dict[int, int] = {}
    return [firsts.setdefault(id(tensor.memory), index) for index, tensor in enumerate(tensors)]


def _launch_steps(recorder: LaunchRecorder, results: set[int]) -> tuple[list[Any], list[Any]]:
    """Return the launches, each with what to allocate before and free after it.

    The second list has the allocations of results that no kernel uses.
    """
    allocations, launches = recorder.allocations, recorder.launches
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for index, entry in enumerate(launches):
        for _, number in entry.fills:
            if number in allocations:
                first.setdefault(number, index)
                last[number] = index
    steps = []
    for index, entry in enumerate(launches):
        allocates = [(number, *allocations[number]) for number in first if first[number] == index]
        frees = [number for number in last if last[number] == index and number not in results]
        steps.append(
            (
                allocates,
                entry.device,
                entry.kernel,
                entry.global_size,
                entry.local_size,
                entry.arguments,
                entry.fills,
                frees,
            )
        )
    return steps, [
        (entry, *allocations[entry])
        for entry in allocations
        if entry in results and entry not in first
    ]


def _recipe_of(result: Any, tensors: Sequence[OclTensor], recorder: LaunchRecorder) -> Any:
    """Return a recipe to rebuild the result from arguments and allocations; None if impossible.

    The recipe of a tensor is its memory's number and its metadata; of an argument itself, its
    number alone; of None, an empty tuple; of a list or tuple, its type and the recipes within.
    """
    if isinstance(result, (list, tuple)):
        recipes = [_recipe_of(value, tensors, recorder) for value in result]
        return None if None in recipes else (type(result), recipes)
    if result is None:
        return ()
    if type(result) is not OclTensor:
        return None
    for number, value in enumerate(tensors):
        if value is result:
            return (number,)
    memory_number = recorder.number_of(raw_buffer(result.memory))
    return None if memory_number is None else (memory_number, result.metadata)


def _is_allocated(recipe: Any, num_arguments: int) -> bool:
    return len(recipe) == 2 and type(recipe[0]) is int and recipe[0] >= num_arguments


def _numbers_in(recipe: Any) -> Iterable[int]:
    if recipe and isinstance(recipe[0], type):
        for inner in recipe[1]:
            yield from _numbers_in(inner)
    elif recipe:
        yield recipe[0]


def _build_result(
    recipe: Any, tensors: Sequence[OclTensor], memories: dict[int, DeviceMemory]
) -> Any:
    if not recipe:
        return None
    first = recipe[0]
    if type(first) is type:
        return first(_build_result(inner, tensors, memories) for inner in recipe[1])
    if len(recipe) == 1:
        return tensors[first]
    meta: TensorMeta = recipe[1]
    return meta.view_of(tensors[first]) if first < len(tensors) else meta.tensor_in(memories[first])
