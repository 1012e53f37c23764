"""Plain values of a script that its forward and its loss may read: attributes, closures, globals.

They are numbers in a compiled step, so that the step holds for these values only.
"""

from __future__ import annotations

from dis import get_instructions
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CellType, CodeType
    from typing import Any

PLAIN_TYPES = (bool, int, float, complex, str, bytes, type(None))

CONTAINERS = (list, tuple, set, frozenset, dict)

MAX_DEPTH = 4
"""How far objects that hold objects are followed."""

LIBRARIES = ("torch", "numpy", "cputrain")
"""Packages whose functions read no values of a script."""


class TensorPlace(NamedTuple):
    """A tensor that is an attribute of an object, and no parameter or buffer."""

    place: dict[str, Any]
    name: str
    tensor: Tensor


class ScriptValues:
    """Values that modules and functions may read, as they are now.

    Args:
        modules: Modules, whose attributes and methods are followed.
        functions: Functions, or objects that are called.
    """

    def __init__(self, modules: Iterable[nn.Module], functions: Iterable[Any]) -> None:
        self._places: list[tuple[dict[str, Any], str, Any]] = []
        self._cells: list[tuple[CellType, Any]] = []
        self._containers: list[tuple[str, Any, list[Any]]] = []
        self._functions: list[FunctionType] = []
        self._tensors: list[TensorPlace] = []
        self._known: set[int] = set()
        for module in modules:
            self._add_object(module, MAX_DEPTH)
        for function in functions:
            self._add(function, MAX_DEPTH)

    @property
    def key(self) -> tuple[Any, ...]:
        """Return the values, as a compiled step assumes them."""
        return (
            tuple((name, repr(value)) for _, name, value in self._places),
            tuple(repr(value) for _, value in self._cells),
        )

    def are_current(self) -> bool:
        """Return whether all are as they were."""
        for place, name, value in self._places:
            now = place.get(name, place)
            if now is not value and not _is_same(now, value):
                return False
        for _, container, members in self._containers:
            now = _members(container)
            if len(now) != len(members) or not all(map(is_, now, members)):
                return False
        return all(_is_same(cell.cell_contents, value) for cell, value in self._cells)

    def tensors(self) -> list[TensorPlace]:
        """Return the tensors among attributes whose names are in the functions."""
        names = {name for function in self._functions for name in _names_in(function.__code__)}
        return [each for each in self._tensors if each.name in names]

    def effect(self) -> str:
        """Return what a function does beside returning a value, such as printing; "" if nothing.

        It is found by names and instructions, so that a function may never come to do it.
        """
        for function in self._functions:
            name = _effect_of(function.__code__)
            if name:
                return f"{function.__qualname__} {name}"
        return ""

    def restore(self) -> str:
        """Undo changes; return the name of a value that was changed, or ""."""
        name = self.difference()
        for place, key, value in self._places:
            if not _is_same(place.get(key, place), value):
                place[key] = _copied(value)
        for cell, value in self._cells:
            if not _is_same(cell.cell_contents, value):
                cell.cell_contents = _copied(value)
        return name

    def difference(self) -> str:
        """Return the name of a value that is another now; "" if all are as they were."""
        for place, name, value in self._places:
            if not _is_same(place.get(name, place), value):
                return name
        for name, container, members in self._containers:
            now = _members(container)
            if len(now) != len(members) or not all(map(is_, now, members)):
                return name
        if any(not _is_same(cell.cell_contents, value) for cell, value in self._cells):
            return "a variable of an enclosing function"
        return ""

    def _add(self, value: Any, depth: int) -> None:
        """Add what a value that is not plain refers to."""
        if not depth or id(value) in self._known or isinstance(value, Tensor | ModuleType | type):
            return
        if isinstance(value, MethodType):
            self._add_method(value.__func__, type(value.__self__), depth)
            self._add(value.__self__, depth)
        elif isinstance(value, FunctionType):
            self._add_method(value, _class_of(value), depth)
        elif not isinstance(value, BuiltinFunctionType):
            self._add_object(value, depth)

    def _add_object(self, value: Any, depth: int) -> None:
        if id(value) in self._known:
            return
        self._known.add(id(value))
        for name, attribute in vars(value).items() if hasattr(value, "__dict__") else ():
            if type(attribute) is Tensor:
                self._tensors.append(TensorPlace(vars(value), name, attribute))
            elif not (isinstance(value, nn.Module) and name in MODULE_ATTRIBUTES):
                self._add_place(vars(value), name, attribute, depth)
        if type(value).__module__.partition(".")[0] in LIBRARIES:
            return
        for name in ("forward", "__call__"):
            for method in _methods(type(value), name):
                self._add_method(method, type(value), depth)

    def _add_method(self, function: Any, owner: type | None, depth: int) -> None:
        """Add a function, which may call methods of a class."""
        if depth and isinstance(function, FunctionType) and id(function) not in self._known:
            self._known.add(id(function))
            self._add_function(function, owner, depth - 1)

    def _add_place(self, place: dict[str, Any], name: str, value: Any, depth: int) -> None:
        if _is_plain(value):
            self._places.append((place, name, _copied(value)))
        elif not isinstance(value, nn.Module):
            if type(value) in CONTAINERS:
                self._containers.append((name, value, _members(value)))
            for each in _members(value):
                self._add(each, depth - 1)

    def _add_function(self, function: FunctionType, owner: type | None, depth: int) -> None:
        if function.__module__ and function.__module__.partition(".")[0] in LIBRARIES:
            return
        self._functions.append(function)
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # empty
                continue
            if _is_plain(value):
                self._cells.append((cell, _copied(value)))
            else:
                self._add(value, depth)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._add(value, depth)
        for name in _names_in(function.__code__):
            if name in function.__globals__:
                self._add_place(function.__globals__, name, function.__globals__[name], depth)
            elif owner is not None:
                for method in _methods(owner, name):
                    self._add_method(method, owner, depth)


MODULE_ATTRIBUTES = frozenset(vars(nn.Module())) - {"training"}
"""Attributes of every module, which are looked at elsewhere."""


EFFECTS = frozenset({
    "print", "open", "input", "exec", "eval", "next", "write", "writelines", "flush", "debug",
    "info", "warning", "error", "exception", "critical", "sleep", "time", "time_ns",
    "perf_counter", "perf_counter_ns", "monotonic", "now", "urandom", "put", "send", "add_scalar",
    "add_histogram", "register_hook", "retain_grad", "register_buffer", "register_parameter",
    "setattr", "delattr", "update", "setdefault", "popitem", "record_function",
})  # fmt: skip
"""Names of functions that do more than return a value, or return another one each time."""

STORES = {
    "STORE_ATTR": "sets an attribute", "DELETE_ATTR": "deletes an attribute",
    "STORE_GLOBAL": "sets a global variable", "DELETE_GLOBAL": "deletes a global variable",
    "YIELD_VALUE": "is a generator",
}  # fmt: skip


def _effect_of(code: CodeType) -> str:
    """Return what code does beside returning a value; "" if nothing."""
    for name in code.co_names:
        if name in EFFECTS:
            return f"calls {name}"
    for instruction in get_instructions(code):
        if instruction.opname in STORES:
            return STORES[instruction.opname]
        if instruction.opname == "STORE_DEREF" and instruction.argval in code.co_freevars:
            return "sets a variable of an enclosing function"
    inner = (constant for constant in code.co_consts if hasattr(constant, "co_names"))
    is_generator = {"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"}
    return next(
        (
            effect
            for each in inner
            if each.co_name not in is_generator and (effect := _effect_of(each))
        ),
        "",
    )


def _names_in(code: Any) -> Iterator[str]:
    """Yield the names of globals and attributes in a function, and in functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names_in(constant)


def _class_of(function: FunctionType) -> type | None:
    """Return the class that defines a function; None if there is none."""
    owner = function.__globals__.get(function.__qualname__.rpartition(".")[0])
    return owner if isinstance(owner, type) else None


def _methods(owner: type, name: str) -> Iterator[Any]:
    """Yield the functions of this name of a class and of those that it inherits from.

    `super()` may call any of them.
    """
    for each in owner.__mro__:
        member = vars(each).get(name)
        if isinstance(member, property):
            member = member.fget
        yield getattr(member, "__func__", member)


def _is_same(value: Any, before: Any) -> bool:
    """Return whether a value is the plain value of before, of the same type; NaN is, too."""
    return value is before or (
        type(value) is type(before) and _is_plain(value) and bool(value == before)
    )


def _is_plain(value: Any) -> bool:
    if isinstance(value, PLAIN_TYPES):
        return True
    if type(value) in CONTAINERS:
        return all(map(_is_plain, _members(value)))
    return False


def _members(value: Any) -> list[Any]:
    """Return the members of a container; of anything else, itself."""
    if type(value) is dict:
        return [*value, *value.values()]
    return list(value) if type(value) in CONTAINERS else [value]


def _copied(value: Any) -> Any:
    """Return a plain value that does not change with the script's."""
    if type(value) is dict:
        return {key: _copied(member) for key, member in value.items()}
    return type(value)(map(_copied, value)) if type(value) in CONTAINERS else value
