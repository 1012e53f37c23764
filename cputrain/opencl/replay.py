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

from cputrain.opencl.alias_info import writes
from cputrain.opencl.device import UploadStats, buffer_of
from cputrain.opencl.fallback_policy import run_between
from cputrain.opencl.table import KERNELS
from cputrain.opencl.tensor import OclTensor
from cputrain.opencl.trace import NOW, Recorder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cputrain.opencl.device import Memory
    from cputrain.opencl.tensor import TensorMeta

    Run = Callable[[Any, Any, Any], Any]

PLAIN = frozenset(
    {int, type(None), str, torch.dtype, torch.device, torch.memory_format, torch.layout}
)
"""Types of arguments that can be part of a key as they are."""

WHOLE = frozenset({int})

MOST = 1 << 13
"""Maximum number of keys in the cache."""

TRIES = 3
"""Attempts to trace a call: a one-off event, such as a finalizer, may break a trace."""

NEVER = TRIES + 1

_known: dict[Any, Repeat | Recorder | int] = {}
"""By key: the replay, the first trace, or the number of attempts (`NEVER`: do not trace)."""


def _add(values: Iterable[Any], key: list[Any], tensors: list[OclTensor]) -> bool:
    """Append the values to the key and tensors; return False if an argument has no key.

    Calls with equal keys launch the same kernels.
    """
    for one in values:
        kind = type(one)
        if kind is OclTensor:
            key.append(one.form)
            tensors.append(one)
        elif kind in PLAIN:
            key.append(one)
        elif kind is list or kind is tuple:
            if WHOLE.issuperset(map(type, one)):
                key.append(tuple(one))
            else:
                key.append(len(one))
                if not _add(one, key, tensors):
                    return False
        elif kind is float or kind is bool:
            key.append((kind, one or str(one)))  # (tell 1.0 from 1, and -0.0 from 0.0)
        else:
            return False
    return True


def run_as_known(run: Run, by_cpu: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """Return an operator's result, by replay if its launches are known, else by `run`."""
    key: list[Any] = [id(func), torch.get_default_dtype()]  # (operators are never freed)
    tensors: list[OclTensor] = []
    if kwargs:
        key += kwargs
    if (
        NOW.recorder is not None  # called within an operator that is being traced
        or not _add(args, key, tensors)
        or (kwargs and not _add(kwargs.values(), key, tensors))
    ):
        return run(func, args, kwargs)
    call = tuple(key)
    if UploadStats.any:
        return run_between(
            lambda: _by_device(run, func, args, kwargs, call, tensors),
            lambda: by_cpu(func, args, kwargs), func, call, tensors,
        )  # fmt: skip
    return _by_device(run, func, args, kwargs, call, tensors)


def _by_device(
    run: Run, func: Any, args: Any, kwargs: Any, call: Any, tensors: Sequence[OclTensor]
) -> Any:
    known = _known.get(call, 0)
    if isinstance(known, Repeat):
        found = known.again(tensors)
        if found is NotImplemented:  # these tensors alias each other differently
            found = _by_device(run, func, args, kwargs, (call, *_pattern(tensors)), tensors)
        return found
    if known == 0 or known == NEVER:
        if not known:
            _one_device(func, tensors)
            if len(_known) >= MOST:
                _known.clear()
            _known[call] = NEVER if is_made_of_others(func) else 1
        return run(func, args, kwargs)
    recorder = NOW.recorder = Recorder([buffer_of(one.memory) for one in tensors])
    try:
        found = run(func, args, kwargs)
    finally:
        NOW.recorder = None
    how = None if recorder.is_broken else _how(found, tensors, recorder)
    if how is None:
        _known[call] = known + 1 if isinstance(known, int) else NEVER
    elif isinstance(known, Recorder) and known.is_like(recorder):
        _known[call] = Repeat(func, tensors, recorder, how)
    else:
        _known[call] = recorder.forget()
    return found


def _one_device(func: Any, tensors: Sequence[OclTensor]) -> None:
    """Raise torch's error unless all tensors are on one device; copies are exempt."""
    there = {one.memory.device.name_in_torch for one in tensors}
    if len(there) > 1 and "copy" not in func.name():
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(there))}!"
        )


@cache
def is_made_of_others(func: Any) -> bool:
    """Return whether an operator without a kernel is composite, as seen with autograd off."""
    return func not in KERNELS and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )


class Repeat:
    """The recorded launches and allocations of a call, ready to run with other tensors."""

    def __init__(
        self, func: Any, tensors: Sequence[OclTensor], recorder: Recorder, how: Any
    ) -> None:
        pattern = _pattern(tensors)
        is_plain = not writes(func) and pattern == list(range(len(tensors)))
        self._pattern = None if is_plain else pattern
        self._draws = tuple((number, *one) for number, one in recorder.draws.items())
        recorder.forget()
        self._how = how
        self._single: tuple[int, TensorMeta] | None = how if _is_new(how, len(tensors)) else None
        self._blank = [None] * (len(recorder.rooms) + 2 * len(self._draws))
        self._steps, self._rest = _steps(recorder, set(_numbers_in(how)))

    def again(self, tensors: Sequence[OclTensor]) -> Any:
        """Run the launches for these tensors and return the result.

        Return NotImplemented if they alias each other in another way than the recorded ones.
        """
        if self._pattern is not None and _pattern(tensors) != self._pattern:
            return NotImplemented
        values: list[Any] = [one.memory.buffer for one in tensors] if self._steps else []
        values += self._blank
        memories: dict[int, Memory] = {}
        for number, generator, count in self._draws:
            values[number], values[number + 1] = generator.take(count)
        for takes, device, kernel, items, group, arguments, fills, drops in self._steps:
            for number, where, size, used in takes:
                memory = memories[number] = where.allocate(size, used)
                values[number] = memory.buffer
            given = arguments.copy()
            for place, number in fills:
                given[place] = values[number]
            device.run(kernel, items, group, given)
            for number in drops:
                del memories[number]
        for number, where, size, used in self._rest:
            memories[number] = where.allocate(size, used)
        if self._single is not None:
            number, form = self._single
            return form.within(memories[number])
        return _result(self._how, tensors, memories)


def _pattern(tensors: Sequence[OclTensor]) -> list[int]:
    """Return, for each tensor, the index of the first tensor in the same memory."""
    firsts: dict[int, int] = {}
    return [firsts.setdefault(id(one.memory), number) for number, one in enumerate(tensors)]


def _steps(recorder: Recorder, results: set[int]) -> tuple[list[Any], list[Any]]:
    """Return the launches, each with what to allocate before and free after it.

    The second list has the allocations of results that no kernel uses.
    """
    rooms, asked = recorder.rooms, recorder.asked
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for at, one in enumerate(asked):
        for _, number in one.fills:
            if number in rooms:
                first.setdefault(number, at)
                last[number] = at
    steps = []
    for at, one in enumerate(asked):
        takes = [(number, *rooms[number]) for number in first if first[number] == at]
        drops = [number for number in last if last[number] == at and number not in results]
        steps.append(
            (takes, one.device, one.kernel, one.items, one.group, one.arguments, one.fills, drops)
        )
    return steps, [(one, *rooms[one]) for one in rooms if one in results and one not in first]


def _how(found: Any, tensors: Sequence[OclTensor], recorder: Recorder) -> Any:
    """Return a recipe to rebuild the result from arguments and allocations; None if impossible.

    The recipe of a tensor is its memory's number and its metadata; of an argument itself, its
    number alone; of None, an empty tuple; of a list or tuple, its type and the recipes within.
    """
    if isinstance(found, (list, tuple)):
        each = [_how(one, tensors, recorder) for one in found]
        return None if None in each else (type(found), each)
    if found is None:
        return ()
    if type(found) is not OclTensor:
        return None
    for number, one in enumerate(tensors):
        if one is found:
            return (number,)
    place = recorder.number_of(buffer_of(found.memory))
    return None if place is None else (place, found.form)


def _is_new(how: Any, given: int) -> bool:
    return len(how) == 2 and type(how[0]) is int and how[0] >= given


def _numbers_in(how: Any) -> Iterable[int]:
    if how and isinstance(how[0], type):
        for one in how[1]:
            yield from _numbers_in(one)
    elif how:
        yield how[0]


def _result(how: Any, tensors: Sequence[OclTensor], memories: dict[int, Memory]) -> Any:
    if not how:
        return None
    first = how[0]
    if type(first) is type:
        return first(_result(one, tensors, memories) for one in how[1])
    if len(how) == 1:
        return tensors[first]
    form: TensorMeta = how[1]
    return form.view_of(tensors[first]) if first < len(tensors) else form.within(memories[first])
