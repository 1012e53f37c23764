"""Values of a script that its forward and its loss may read: attributes, closures, globals.

They are constants in a compiled step, so that the step holds for these values only.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from operator import is_
from types import BuiltinFunctionType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from cputrain.step.script_reach import (
    CONTAINERS,
    MISSING,
    PLAIN_CONTAINERS,
    PLAIN_TYPES,
    Reach,
    content_of,
    is_plain,
    members_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

MAX_BYTES = 1 << 16
"""Largest array whose numbers are compared before each step."""


class TensorPlace(NamedTuple):
    """A tensor that is an attribute of an object, and no parameter or buffer."""

    place: dict[str, Any]
    name: str
    tensor: Tensor


class ScriptValues:
    """Values that modules and functions may read, as they are now.

    Code is followed from function to function by the names in it: a name may be that of any
    attribute or method of any object that is known.

    Args:
        modules: Modules, whose attributes and methods are followed.
        functions: Functions, or objects that are called.
    """

    def __init__(self, modules: Iterable[nn.Module], functions: Iterable[Any]) -> None:
        reach = Reach(modules, functions)
        self.tensors = [
            TensorPlace(place, name, value)
            for place, name, value in reach.attributes()
            if type(value) is Tensor
        ]
        """Tensors among attributes that may be read."""
        self._places = [
            (place, name, value)
            for place, name, value in (*reach.attributes(), *reach.variables())
            if not isinstance(value, Tensor | nn.Module)
        ]
        self._class_places: list[tuple[Any, str, Any]] = [
            (vars(base), name, value)
            for base in reach.script_classes()
            for name, value in vars(base).items()
            if name in reach.names or isinstance(value, FunctionType | property)
        ]
        self._copies = [
            (place, name, _copied(value))
            for place, name, value in self._places
            if type(value) in PLAIN_CONTAINERS and is_plain(value)
        ]
        self._arrays = [(each, each.tobytes()) for each in reach.arrays]
        self._cells = [(cell, _copied(content_of(cell))) for cell in reach.cells]
        self._containers = [(each, members_of(each)) for each in reach.containers]
        self._slots = [
            (each, name, _copied(getattr(each, name, MISSING))) for each, name in reach.slots
        ]
        spaces = {id(place): place for place in reach.namespaces}
        self._keys = [(place, frozenset(place)) for place in spaces.values()]
        self._sized: list[Any] = [*spaces.values(), *map(vars, reach.script_classes())]
        self._sizes = list(map(len, self._sized))
        self._objects, self._modules = reach.objects, reach.modules
        self._columns = tuple(zip(*self._places, strict=True)) or ((), (), ())
        self._class_columns = tuple(zip(*self._class_places, strict=True)) or ((), (), ())

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the values, as a compiled step assumes them."""
        return (
            tuple((name, _keyed(value)) for _, name, value in self._places),
            tuple(_keyed(value) for _, value in self._cells),
            tuple((name, _keyed(value)) for _, name, value in self._slots),
            tuple((name, _SameObject(value)) for _, name, value in self._class_places),
            tuple(kind for _, kind in (*self._objects, *self._modules)),
            tuple(numbers for _, numbers in self._arrays),
        )

    def are_current(self) -> bool:
        """Return whether all are as they were."""
        spaces, names, values = self._columns
        classes, members, functions = self._class_columns
        return (
            (all(map(is_, map(dict.get, spaces, names), values)) or not self._changed_place())
            and all(map(is_, map(MappingProxyType.get, classes, members), functions))
            and list(map(len, self._sized)) == self._sizes
            and not self._changed_content()
        )

    def _changed_place(self) -> str:
        """Return the name of a variable or attribute that is another now; "" if there is none."""
        for space, name, value in (*self._places, *self._class_places):
            now = space.get(name, MISSING)
            if now is not value and not (type(now) in PLAIN_TYPES and _is_same(now, value)):
                return name
        return ""

    def _changed_content(self) -> str:
        """Return what has changed within a value that is still the same object; "" if nothing."""
        for space, name, value in self._copies:
            if not _is_same(space.get(name), value):
                return name
        for container, members in self._containers:
            if not _are_members(container, members):
                names = (name for _, name, value in self._places if value is container)
                return next(names, f"a {type(container).__name__}")
        for numbers, before in self._arrays:
            if numbers.tobytes() != before:
                return "an array of numbers"
        for each, name, value in self._slots:
            if not _is_same(getattr(each, name, MISSING), value):
                return name
        if any(not _is_same(content_of(cell), value) for cell, value in self._cells):
            return "a variable of an enclosing function"
        if any(type(each) is not kind for each, kind in self._objects) or any(
            type(module()) is not kind for module, kind in self._modules
        ):
            return "the class of an object"
        return ""

    @property
    def is_large(self) -> bool:
        """Return whether there are arrays of more numbers than can be compared before each step."""
        return any(len(before) > MAX_BYTES for _, before in self._arrays)

    def restore(self) -> str:
        """Undo changes; return the name of a value that was changed, or ""."""
        change = self.difference()
        for place, name, value in (*self._places, *self.tensors):
            if place.get(name, MISSING) is not value:
                place[name] = value
        for place, keys in self._keys:
            for name in place.keys() - keys:
                del place[name]
        for container, members in self._containers:
            if not _are_members(container, members):
                _refill(container, members)
        for place, name, value in self._copies:
            if not _is_same(place[name], value):
                _refill(place[name], members_of(value))
        for cell, value in self._cells:
            if not _is_same(content_of(cell), value):
                cell.cell_contents = _copied(value)
        return change

    def difference(self) -> str:
        """Return the name of a value that is another now; "" if all are as they were."""
        change = self._changed_place() or self._changed_content()
        if change or list(map(len, self._sized)) == self._sizes:
            return change
        for space, keys in self._keys:
            if space.keys() != keys:
                return next(iter(space.keys() ^ keys))
        return "an attribute of a class"


class _SameObject:
    """A value that equals itself only."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __hash__(self) -> int:
        return id(self._value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SameObject) and self._value is other._value


def _keyed(value: Any) -> Any:
    """Return what a compiled step assumes of a value: objects of a class are followed anyway."""
    if is_plain(value):
        return repr(value)
    if isinstance(value, FunctionType | BuiltinFunctionType | type | ModuleType):
        return _SameObject(value)
    if isinstance(value, MethodType):
        return _SameObject(value.__func__)
    if isinstance(value, CONTAINERS):
        return (type(value), *map(_keyed, members_of(value)))
    if isinstance(value, partial):
        return tuple(map(_keyed, (value.func, value.args, value.keywords)))
    return _SameObject(type(value)) if hasattr(value, "__dict__") else _SameObject(value)


def _is_same(value: Any, before: Any) -> bool:
    """Return whether a value is that of before, or a plain one that is equal."""
    return value is before or (
        type(value) is type(before) and is_plain(value) and bool(value == before)
    )


def _are_members(container: Any, members: list[Any]) -> bool:
    now = members_of(container)
    return len(now) == len(members) and all(map(is_, now, members))


def _refill(container: Any, members: list[Any]) -> None:
    """Have a container of a script, which was changed, hold the members of before."""
    if isinstance(container, list):
        container[:] = members
    elif isinstance(container, set):
        container.clear()
        container.update(members)
    elif isinstance(container, deque):
        container.clear()
        container.extend(members)
    elif isinstance(container, dict):
        number = len(members) // 2
        container.clear()
        container.update(zip(members[:number], members[number:], strict=True))


def _copied(value: Any) -> Any:
    """Return a value that does not change with the script's, if it is plain."""
    if not is_plain(value):
        return value
    if type(value) is tuple and all(map(is_, map(_copied, value), value)):
        return value  # (it cannot change, and is compared as one object)
    if type(value) is dict:
        return {key: _copied(member) for key, member in value.items()}
    return type(value)(map(_copied, value)) if type(value) in PLAIN_CONTAINERS else value
