"""Checks of whether samples can be rebuilt from shared memory without a visible difference.

A rebuilt object is equal to the original, but not identical. For an immutable object this makes no
difference. A mutable object must be referenced by its sample only; what a worker changes then stays
in that worker (see `packed_samples`).
"""

from __future__ import annotations

import gc
import sys
from datetime import date, timedelta
from decimal import Decimal
from enum import EnumMeta
from pathlib import PosixPath, PurePosixPath
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_DEPTH = 8
"""The largest nesting depth of containers that is checked."""

_MAX_PARTS = 256
"""The largest average number of objects in a sample that are checked."""

_ATOMIC_TYPES = frozenset(
    (int, float, complex, bool, str, bytes, type(None), date, timedelta, Decimal)
) | {PosixPath, PurePosixPath}
"""Immutable types that refer to no other objects."""

_MARSHAL_TYPES = frozenset((int, float, complex, bool, str, bytes, type(None), tuple, list, dict))

_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: the class was created at run time, such as by a `class` statement."""

_NUM_PROBES = 256
"""The number of samples whose sizes are added up for an estimate of all."""


class NotSharableError(Exception):
    """Samples cannot be rebuilt from shared memory; the text says why."""


class SampleTraits(NamedTuple):
    """Properties of the objects that samples consist of."""

    is_mutable: bool
    """Whether some of the objects can be changed."""
    is_builtin: bool
    """Whether all objects are of built-in types that `marshal` supports."""


def require_sharable(samples: Sequence[Any], num_references: int) -> SampleTraits:
    """Return the traits of samples; raise NotSharableError if some cannot be rebuilt.

    Args:
        samples: The samples to rebuild.
        num_references: The number of the caller's references to each sample.
    """
    is_mutable, is_builtin = False, True
    level = list(samples)
    depth = 0
    base_count = next(map(sys.getrefcount, [object()]))  # in `objects`
    max_count = base_count + 1 + num_references  # and in `level`
    while level:
        if depth > MAX_DEPTH:
            raise NotSharableError(f"they are nested deeper than {MAX_DEPTH} containers")
        if len(level) > _MAX_PARTS * len(samples):
            raise NotSharableError(f"they hold more than {_MAX_PARTS} objects each")
        kinds = {kind: _classify(kind) for kind in set(map(type, level))}
        is_builtin = is_builtin and _MARSHAL_TYPES.issuperset(kinds)
        mutable_kinds = {kind for kind, (can_change, _) in kinds.items() if can_change}
        container_kinds = {kind for kind, (_, is_container) in kinds.items() if is_container}
        objects = (
            [value for value in level if type(value) in mutable_kinds] if mutable_kinds else []
        )
        if objects:
            is_mutable = True
            if max(map(sys.getrefcount, objects)) > max_count:
                raise NotSharableError("other objects refer to them too, and could change them")
            if np.ndarray in mutable_kinds:
                _require_plain_arrays(objects)
        if container_kinds != mutable_kinds:
            objects = (
                [value for value in level if type(value) in container_kinds]
                if container_kinds
                else []
            )
        level = gc.get_referents(*objects)
        max_count = base_count + 2  # in `level` and in its container
        del objects
        # instances of such classes refer to their class
        if any(kind.__flags__ & _HEAP_TYPE for kind in container_kinds):
            level = [value for value in level if not isinstance(value, type)]
        depth += 1
    return SampleTraits(is_mutable, is_builtin)


def _classify(kind: type) -> tuple[bool, bool]:
    """Return whether objects of a type are mutable, and whether they refer to others.

    Raise NotSharableError for an unsupported type.
    """
    if kind in _ATOMIC_TYPES or isinstance(kind, EnumMeta):
        return False, False
    if kind is tuple or _is_namedtuple(kind):
        return False, True
    if kind in (list, dict):
        return True, True
    if kind is np.ndarray or kind is bytearray:
        return True, False
    if issubclass(kind, np.generic) and kind.__module__ == "numpy":
        if not issubclass(kind, (np.void, np.object_)):
            return False, False
    elif _is_instance(kind):
        return True, True
    raise NotSharableError(f"they contain an object of type {kind.__module__}.{kind.__qualname__}")


def _is_namedtuple(kind: Any) -> bool:
    """Return whether a class is a named tuple that is pickled in the usual way."""
    attributes = vars(kind)
    return (
        kind.__bases__ == (tuple,)
        and attributes.get("__slots__") == ()
        and "_make" in attributes
        and kind.__reduce_ex__ is object.__reduce_ex__
        and isinstance(attributes.get("__getnewargs__"), FunctionType)
        and "__reduce__" not in attributes
    )


def _is_instance(kind: type) -> bool:
    """Return whether objects of a class are fully described by their attributes."""
    plain: Any = object
    return (
        type(kind) is type
        and all(base.__flags__ & _HEAP_TYPE for base in kind.__mro__[:-1])
        and all(base.__module__ != "builtins" for base in kind.__mro__[:-1])
        and all(
            getattr(kind, name, None) is getattr(plain, name, None)
            for name in (
                "__new__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
                "__getnewargs__", "__getnewargs_ex__", "__del__", "__getattribute__",
                "__getattr__",
            )
        )
        # unpickling sets slots by `__setattr__`
        and (kind.__setattr__ is plain.__setattr__ or not _has_slots(kind))
    )  # fmt: skip


def _has_slots(kind: type) -> bool:
    return any(vars(base).get("__slots__") for base in kind.__mro__)


def _require_plain_arrays(values: Iterable[Any]) -> None:
    """Raise NotSharableError if an array among the values cannot be rebuilt exactly."""
    for value in values:
        if type(value) is not np.ndarray:
            continue
        flags = value.flags
        if not (flags.owndata and flags.c_contiguous and flags.writeable and flags.aligned):
            raise NotSharableError("they contain an array that is a view or read-only")
        if value.dtype.hasobject or value.dtype.names or not value.dtype.isnative:
            raise NotSharableError(f"they contain an array of dtype {value.dtype}")


def estimated_bytes(samples: Sequence[Any]) -> int:
    """Estimate the bytes of memory that objects take, by adding up some of them."""
    step = max(1, len(samples) // _NUM_PROBES)
    probes = [samples[row] for row in range(0, len(samples), step)]
    total = 0
    seen: set[int] = set()
    level: list[Any] = probes
    for _ in range(MAX_DEPTH):
        fresh = {id(value): value for value in level if id(value) not in seen}
        seen.update(fresh)
        containers = []
        for value in fresh.values():
            try:
                _, is_container = _classify(type(value))
            except NotSharableError:  # do not call methods of an unknown type
                continue
            if not (type(value) is int and -6 < value < 257):  # CPython's cached small integers
                total += sys.getsizeof(value)
            if is_container:
                containers.append(value)
        level = gc.get_referents(*containers)
    return total * len(samples) // max(1, len(probes))
