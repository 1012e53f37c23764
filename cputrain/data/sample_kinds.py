"""Which samples can be rebuilt in a worker so that nobody can tell them from the originals.

An object rebuilt from shared memory is equal to the original, and another object. For an object
that nothing can change, nobody can tell. One that can be changed must be held by its sample alone;
what a worker changes then stays with that worker (see `packed_samples`).
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
"""Containers within containers that are looked through."""

_MAX_PARTS = 256
"""Objects of each sample, on average, that are looked through."""

_SINGLE = frozenset(
    (int, float, complex, bool, str, bytes, type(None), date, timedelta, Decimal)
) | {PosixPath, PurePosixPath}
"""Types that hold no other objects, and cannot be changed."""

_MARSHALED = frozenset((int, float, complex, bool, str, bytes, type(None), tuple, list, dict))

_HEAP_TYPE = 1 << 9
"""Py_TPFLAGS_HEAPTYPE: a class made by a script or a module, rather than by the interpreter."""

_NUM_PROBES = 256
"""Samples whose bytes are counted, to tell how many all of them take."""


class NotSharableError(Exception):
    """Samples of this kind stay where they are; the text says why."""


class Kinds(NamedTuple):
    """What samples are made of."""

    can_change: bool
    """Whether whoever takes one can change it."""
    is_builtin: bool
    """Whether they are of types of Python's own that `marshal` knows."""


def require_sharable(samples: Sequence[Any], num_holders: int) -> Kinds:
    """Return what samples are made of; raise NotSharableError if some cannot be rebuilt.

    Args:
        samples: what is to be rebuilt.
        num_holders: how many references to each sample the caller has.
    """
    can_change, is_builtin = False, True
    level = list(samples)
    depth = 0
    counted_alone = next(map(sys.getrefcount, [object()]))  # in `held`
    expected = counted_alone + 1 + num_holders  # and in `level`
    while level:
        if depth > MAX_DEPTH:
            raise NotSharableError(f"they are nested deeper than {MAX_DEPTH} containers")
        if len(level) > _MAX_PARTS * len(samples):
            raise NotSharableError(f"they hold more than {_MAX_PARTS} objects each")
        kinds = {kind: _kind(kind) for kind in set(map(type, level))}
        is_builtin = is_builtin and _MARSHALED.issuperset(kinds)
        mutable = {kind for kind, (is_mutable, _) in kinds.items() if is_mutable}
        containers = {kind for kind, (_, is_container) in kinds.items() if is_container}
        held = [thing for thing in level if type(thing) in mutable] if mutable else []
        if held:
            can_change = True
            if max(map(sys.getrefcount, held)) > expected:
                raise NotSharableError("something else holds them too, and could change them")
            if np.ndarray in mutable:
                _require_plain_arrays(held)
        if containers != mutable:
            held = [thing for thing in level if type(thing) in containers] if containers else []
        level = gc.get_referents(*held)
        expected = counted_alone + 2  # in `level` and in its container
        del held
        if any(kind.__flags__ & _HEAP_TYPE for kind in containers):  # which hold their class
            level = [thing for thing in level if not isinstance(thing, type)]
        depth += 1
    return Kinds(can_change, is_builtin)


def _kind(kind: type) -> tuple[bool, bool]:
    """Return whether objects of a type can be changed, and whether they hold others."""
    if kind in _SINGLE or isinstance(kind, EnumMeta):
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
    raise NotSharableError(f"an object of type {kind.__module__}.{kind.__qualname__} is among them")


def _is_namedtuple(kind: Any) -> bool:
    held = vars(kind)
    return (
        kind.__bases__ == (tuple,)
        and held.get("__slots__") == ()
        and "_make" in held
        and kind.__reduce_ex__ is object.__reduce_ex__
        and isinstance(held.get("__getnewargs__"), FunctionType)
        and "__reduce__" not in held
    )


def _is_instance(kind: type) -> bool:
    """Return whether objects of a class are what their attributes are, and no more."""
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
        # (attributes of slots are set one by one)
        and (kind.__setattr__ is plain.__setattr__ or not _has_slots(kind))
    )  # fmt: skip


def _has_slots(kind: type) -> bool:
    return any(vars(base).get("__slots__") for base in kind.__mro__)


def _require_plain_arrays(things: Iterable[Any]) -> None:
    for thing in things:
        if type(thing) is not np.ndarray:
            continue
        flags = thing.flags
        if not (flags.owndata and flags.c_contiguous and flags.writeable and flags.aligned):
            raise NotSharableError("an array is among them that is a view, or cannot be written to")
        if thing.dtype.hasobject or thing.dtype.names or not thing.dtype.isnative:
            raise NotSharableError(f"an array of {thing.dtype} is among them")


def estimated_bytes(samples: Sequence[Any]) -> int:
    """Return about how many bytes the objects take, by looking at some of them."""
    step = max(1, len(samples) // _NUM_PROBES)
    probes = [samples[row] for row in range(0, len(samples), step)]
    total = 0
    seen: set[int] = set()
    level: list[Any] = probes
    for _ in range(MAX_DEPTH):
        fresh = {id(thing): thing for thing in level if id(thing) not in seen}
        seen.update(fresh)
        holders = []
        for thing in fresh.values():
            try:
                _, is_container = _kind(type(thing))
            except NotSharableError:  # whatever it is: nothing is asked of it
                continue
            if not (type(thing) is int and -6 < thing < 257):  # which are there once
                total += sys.getsizeof(thing)
            if is_container:
                holders.append(thing)
        level = gc.get_referents(*holders)
    return total * len(samples) // max(1, len(probes))
