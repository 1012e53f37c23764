"""Values of a script that its forward and its loss may read: attributes, closures, globals.

They are constants in a compiled step, so that the step holds for these values only.
"""

from __future__ import annotations

import sys
import weakref
from array import array
from collections import deque
from functools import partial
from operator import is_
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MappingProxyType,
    MethodType,
    ModuleType,
)
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

from cputrain.step.script_code import (
    DYNAMIC,
    bases,
    is_of_library,
    is_of_script_alone,
    methods,
    names_in,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))

PLAIN_CONTAINERS = (list, tuple, set, frozenset, dict)

CONTAINERS = (*PLAIN_CONTAINERS, deque)
"""Containers, also of classes that inherit from these."""

MAX_BYTES = 1 << 16
"""Largest array whose numbers are compared before each step."""

MAX_DEPTH = 4
"""How far objects that hold objects are followed."""

MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module, which are looked at elsewhere."""

MISSING = object()


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
        roots = (list(modules), list(functions))
        reach = _Reach(*roots)
        self._functions = list(_Reach(*roots, is_of_modules=True).functions.values())
        self._tensors = [
            TensorPlace(place, name, value)
            for place, name, value in reach.attributes()
            if type(value) is Tensor
        ]
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
            if type(value) in PLAIN_CONTAINERS and _is_plain(value)
        ]
        self._arrays = [(each, each.tobytes()) for each in reach.arrays]
        self._cells = [(cell, _copied(_content(cell))) for cell in reach.cells]
        self._containers = [(each, _members(each)) for each in reach.containers]
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
        if any(not _is_same(_content(cell), value) for cell, value in self._cells):
            return "a variable of an enclosing function"
        if any(type(each) is not kind for each, kind in self._objects) or any(
            type(module()) is not kind for module, kind in self._modules
        ):
            return "the class of an object"
        return ""

    @property
    def functions(self) -> list[FunctionType]:
        """Return the functions that are surely called, or may be by modules and by one another."""
        return self._functions

    @property
    def is_large(self) -> bool:
        """Return whether there are arrays of more numbers than can be compared before each step."""
        return any(len(before) > MAX_BYTES for _, before in self._arrays)

    def tensors(self) -> list[TensorPlace]:
        """Return the tensors among attributes that may be read."""
        return self._tensors

    def restore(self) -> str:
        """Undo changes; return the name of a value that was changed, or ""."""
        change = self.difference()
        for place, name, value in (*self._places, *self._tensors):
            if place.get(name, MISSING) is not value and isinstance(place, dict):
                place[name] = value
        for place, keys in self._keys:
            for name in place.keys() - keys:
                del place[name]
        for container, members in self._containers:
            if not _are_members(container, members):
                _refill(container, members)
        for place, name, value in self._copies:
            if not _is_same(place[name], value):
                _refill(place[name], _members(value))
        for cell, value in self._cells:
            if not _is_same(_content(cell), value):
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


class _Reach:
    """What code can reach: functions, and the places of the values that they may read.

    Args:
        modules: Modules, whose attributes and methods are followed.
        functions: Functions, or objects that are called.
        is_of_modules: Whether methods of other objects and classes are left out: their names may
            be those of others.
    """

    def __init__(
        self, modules: list[nn.Module], functions: list[Any], *, is_of_modules: bool = False
    ) -> None:
        self._is_of_modules = is_of_modules
        self.functions: dict[int, FunctionType] = {}
        self.cells: list[CellType] = []
        self.containers: list[Any] = []
        self.arrays: list[Any] = []
        self.slots: list[tuple[Any, str]] = []
        self.namespaces: list[dict[str, Any]] = []
        self.objects: list[tuple[Any, type]] = []
        self.modules: list[tuple[weakref.ref[nn.Module], type]] = []
        self.names: frozenset[str] = frozenset()
        self._classes: dict[type, None] = {}
        self._owners: list[tuple[dict[str, Any], bool, int]] = []
        """Attributes of objects, whether only code of the script reads them, and the depth."""
        self._files: dict[int, dict[str, Any]] = {}
        """Variables of modules of the script, in the sense of `import`."""
        self._globals: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self._attributes: dict[tuple[int, str], tuple[dict[str, Any], str]] = {}
        self._known: set[int] = set()
        for module in modules:
            self.add_object(module, MAX_DEPTH)
        for function in functions:
            self.add(function, MAX_DEPTH)
        self._follow()

    def attributes(self) -> list[tuple[dict[str, Any], str, Any]]:
        """Return the attributes that may be read: their dictionaries, names and values."""
        return [(place, name, place[name]) for place, name in self._attributes.values()]

    def variables(self) -> list[tuple[dict[str, Any], str, Any]]:
        """Return the global variables that may be read."""
        return [(place, name, place[name]) for place, name in self._globals.values()]

    def script_classes(self) -> list[type]:
        """Return the classes of the script."""
        return list(dict.fromkeys(base for each in self._classes for base in bases(each)))

    def add(self, value: Any, depth: int) -> None:
        """Add what a value that is not plain refers to."""
        if _is_plain(value) or isinstance(value, Tensor | nn.Module | BuiltinFunctionType):
            return
        if isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, MethodType):
            self._add_function(value.__func__)
            self.add(value.__self__, depth)
        elif isinstance(value, ModuleType):
            if not is_of_library(value):
                self._files[id(value)] = vars(value)
        elif isinstance(value, type):
            if not is_of_library(value):
                self._classes[value] = None
        elif depth > 0 and id(value) not in self._known:
            self._known.add(id(value))
            if isinstance(value, partial):
                for each in (value.func, *value.args, *value.keywords.values()):
                    self.add(each, depth)
            elif isinstance(value, CONTAINERS):
                self.containers.append(value)
                for each in _members(value):
                    self.add(each, depth - 1)
                if type(value) not in CONTAINERS:
                    self.add_object(value, depth)
            elif isinstance(value, array) or _is_numpy_array(value):
                self.arrays.append(value)
            else:
                self.add_object(value, depth)

    def add_object(self, value: Any, depth: int) -> None:
        """Add an object, whose attributes and methods may be read."""
        self._known.add(id(value))
        kind = type(value)
        if bases(kind):
            self._classes[kind] = None
            if isinstance(value, nn.Module):
                self.modules.append((weakref.ref(value), kind))
            else:
                self.objects.append((value, kind))
        if hasattr(value, "__dict__"):
            self._owners.append((vars(value), is_of_script_alone(kind), depth))
        for base in bases(kind):
            slots = vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in {"__dict__", "__weakref__"}:
                    self.slots.append((value, name))
                    self.add(getattr(value, name, None), depth - 1)

    def _add_function(self, function: Any) -> None:
        if not isinstance(function, FunctionType) or id(function) in self.functions:
            return
        if not is_of_library(function):
            self.functions[id(function)] = function

    def _follow(self) -> None:
        """Add what functions reach by names, until they reach no more."""
        followed: set[int] = set()
        size = -1
        while size != (size := self._size()):
            for identity, function in list(self.functions.items()):
                if identity not in followed:
                    followed.add(identity)
                    self._follow_function(function)
            is_every = not self.names.isdisjoint(DYNAMIC)
            for attributes, is_named, depth in list(self._owners):
                for name, value in list(attributes.items()):
                    if name not in MODULE_ATTRIBUTES and (
                        name in self.names or (is_every if is_named else _is_option(value))
                    ):
                        self._add_place(self._attributes, attributes, name, value, depth - 1)
            for space in list(self._files.values()):
                for name in self.names & space.keys():
                    self._add_place(self._globals, space, name, space[name], MAX_DEPTH)
            for owner in list(self._classes):
                if self._is_of_modules and not issubclass(owner, nn.Module):
                    continue
                for method in methods(owner, self.names):
                    self._add_function(method)
        self.namespaces = [attributes for attributes, is_named, _ in self._owners if is_named]

    def _size(self) -> int:
        return sum(map(len, (
            self.functions, self.names, self._classes, self._owners, self._files, self._globals,
            self._attributes,
        )))  # fmt: skip

    def _follow_function(self, function: FunctionType) -> None:
        names = names_in(function.__code__)
        self.names |= names.of_attributes
        for cell in function.__closure__ or ():
            self.cells.append(cell)
            self.add(_content(cell), MAX_DEPTH)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.add(value, MAX_DEPTH)
        for name in names.of_globals & function.__globals__.keys():
            space = function.__globals__
            self._add_place(self._globals, space, name, space[name], MAX_DEPTH)

    def _add_place(
        self, places: dict[Any, Any], space: dict[str, Any], name: str, value: Any, depth: int
    ) -> None:
        if (id(space), name) not in places:
            places[id(space), name] = (space, name)
            self.add(value, depth)


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
    if _is_plain(value):
        return repr(value)
    if isinstance(value, FunctionType | BuiltinFunctionType | type | ModuleType):
        return _SameObject(value)
    if isinstance(value, MethodType):
        return _SameObject(value.__func__)
    if isinstance(value, CONTAINERS):
        return (type(value), *map(_keyed, _members(value)))
    if isinstance(value, partial):
        return tuple(map(_keyed, (value.func, value.args, value.keywords)))
    return _SameObject(type(value)) if hasattr(value, "__dict__") else _SameObject(value)


def _is_option(value: Any) -> bool:
    """Return whether a value of an object of a library is one that its code may depend on."""
    return _is_plain(value) or isinstance(value, FunctionType | BuiltinFunctionType)


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return MISSING


def _is_same(value: Any, before: Any) -> bool:
    """Return whether a value is that of before, or a plain one that is equal."""
    return value is before or (
        type(value) is type(before) and _is_plain(value) and bool(value == before)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, PLAIN_TYPES):
        return True
    if type(value) in PLAIN_CONTAINERS:
        return all(map(_is_plain, _members(value)))
    return False


def _is_numpy_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _members(value: Any) -> list[Any]:
    """Return the members of a container, whatever methods its class has."""
    if isinstance(value, dict):
        return [*dict.keys(value), *dict.values(value)]
    kind: Any = next(each for each in CONTAINERS if isinstance(value, each))
    return list(kind.__iter__(value))


def _are_members(container: Any, members: list[Any]) -> bool:
    now = _members(container)
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
    if not _is_plain(value):
        return value
    if type(value) is dict:
        return {key: _copied(member) for key, member in value.items()}
    return type(value)(map(_copied, value)) if type(value) in PLAIN_CONTAINERS else value
