"""An operator that is asked for again, with tensors of the same forms: what it asks for is known.

A kernel's Python looks at what it is given: types, forms, what fits what. That takes longer than
asking the device. The second and the third time it is written down what the operator asks for; if
that is the same, it is asked for from then on, and nothing else is run. What looks at values is
never repeated, and what is made of other operators is left to those.
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
"""Types of arguments that are the same where they are equal."""

WHOLE = frozenset({int})

MOST = 1 << 13
"""Calls that are known."""

TRIES = 3
"""To write down what a call asks for: something may happen meanwhile that happens once."""

NEVER = TRIES + 1

_known: dict[Any, Repeat | Recorder | int] = {}
"""By a call's key: what it asks for; what it asked for once; or how often that was not told."""


def _add(values: Iterable[Any], key: list[Any], tensors: list[OclTensor]) -> bool:
    """Calls with the same key ask for the same. Whether that can be told of these arguments."""
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
            key.append((kind, one or str(one)))  # (1 is no float, and there are two zeros)
        else:
            return False
    return True


def run_as_known(run: Run, by_cpu: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """What the operator gives: by what is known of such a call, or by `run`."""
    key: list[Any] = [id(func), torch.get_default_dtype()]  # (operators live as long as torch)
    tensors: list[OclTensor] = []
    if kwargs:
        key += kwargs
    if (
        NOW.recorder is not None  # it is a part of one that is written down
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
        if found is NotImplemented:  # some are in one memory now, or no more
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
    """Torch's rule, which it leaves to kernels."""
    there = {one.memory.device.name_in_torch for one in tensors}
    if len(there) > 1 and "copy" not in func.name():
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(sorted(there))}!"
        )


@cache
def is_made_of_others(func: Any) -> bool:
    """Whether torch has it as a row of others, as it comes where autograd is off."""
    return func not in KERNELS and torch._C._dispatch_has_kernel_for_dispatch_key(
        func.name(), "CompositeImplicitAutograd"
    )


class Repeat:
    """What one asks for."""

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
        """What it gives for these; NotImplemented where some are in one memory that were not."""
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
    """For each, the first that is in the same memory."""
    firsts: dict[int, int] = {}
    return [firsts.setdefault(id(one.memory), number) for number, one in enumerate(tensors)]


def _steps(recorder: Recorder, results: set[int]) -> tuple[list[Any], list[Any]]:
    """Kernels, each with the memory that it is the first or the last to need; and what is left."""
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
    """How what was found comes of what was given and asked for; None where that cannot be told.

    Of one, it is the tensor's number and form; the number alone, where it is one that was given;
    nothing where there is none.
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
