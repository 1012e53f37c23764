"""What code of a script can reach: functions, and the places of the values that they may read."""

from __future__ import annotations

import sys
import weakref
from array import array
from collections import deque
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING

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

MAX_DEPTH = 4
"""How far objects that hold objects are followed."""

MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module, which are looked at elsewhere."""

MISSING = object()
"""What the cell of a variable without a value has."""


def functions_of(modules: Iterable[nn.Module]) -> Iterable[FunctionType]:
    """Return the functions that modules may call: by methods of modules, and by global names."""
    return Reach(modules, (), is_of_modules=True).functions.values()


class Reach:
    """What code can reach: functions, and the places of the values that they may read.

    Args:
        modules: Modules, whose attributes and methods are followed.
        functions: Functions, or objects that are called.
        is_of_modules: Whether methods of other objects and classes are left out: their names may
            be those of others.
    """

    def __init__(
        self, modules: Iterable[nn.Module], functions: Iterable[Any], *, is_of_modules: bool = False
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
        if is_plain(value) or isinstance(value, Tensor | nn.Module | BuiltinFunctionType):
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
                for each in members_of(value):
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
            self.add(content_of(cell), MAX_DEPTH)
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


def _is_option(value: Any) -> bool:
    """Return whether a value of an object of a library is one that its code may depend on."""
    return is_plain(value) or isinstance(value, FunctionType | BuiltinFunctionType)


def content_of(cell: CellType) -> Any:
    """Return the value of a variable of an enclosing function; MISSING if it has none."""
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return MISSING


def is_plain(value: Any) -> bool:
    """Return whether a value is a number, a text or nothing, or a container of such values."""
    if isinstance(value, PLAIN_TYPES):
        return True
    if type(value) in PLAIN_CONTAINERS:
        return all(map(is_plain, members_of(value)))
    return False


def _is_numpy_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def members_of(value: Any) -> list[Any]:
    """Return the members of a container, whatever methods its class has."""
    if isinstance(value, dict):
        return [*dict.keys(value), *dict.values(value)]
    kind: Any = next(each for each in CONTAINERS if isinstance(value, each))
    return list(kind.__iter__(value))
