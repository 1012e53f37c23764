"""Tells which attributes of a model's modules its forward may read, from the code of its classes.

A counter, an optimizer or a trainer that a script keeps in its module has no part in a forward: it
may be another in each call, and need not be copied. What cannot be told, as where code computes the
name of an attribute, counts as read.
"""

from __future__ import annotations

import dis
import sys
from functools import cache, cached_property, partial, partialmethod
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from cputrain.split.proof.model_state import HOOK_TABLES, modules_of, reachable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

COMPUTED = frozenset({
    "__dict__", "__getattribute__", "attrgetter", "eval", "exec", "locals", "vars", "__slots__",
    "getmembers",
})  # fmt: skip
"""Names of what reads attributes of any name."""

BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr"})
"""Functions that are given the name: where it is no constant, it may be any."""

NEUTRAL = frozenset(
    {"LOAD_ATTR", "PUSH_NULL", "PRECALL", "CACHE", "NOP", "KW_NAMES", "EXTENDED_ARG"}
)
"""Instructions that leave as many values on the stack as there were, for such a call."""

ELSEWHERE = frozenset({"torch", "numpy", "cputrain", *sys.stdlib_module_names})
"""Packages whose functions know nothing of a script's attributes."""

UNNAMED = frozenset({
    "__getattr__", "__getattribute__", "__call__", "__getitem__", "__iter__", "__len__",
    "__contains__", "__bool__", "__enter__", "__exit__", "__eq__", "__hash__",
})  # fmt: skip
"""Methods that are called without their names."""

MAX_FUNCTIONS = 3_000
"""More than a forward calls: beyond it, everything counts as read."""

OF_MODULES = frozenset(dir(nn.Module)) | frozenset(nn.Module().__dict__)


class ReadNames:
    """The names that the forwards of a model's classes may read."""

    def __init__(self, model: nn.Module) -> None:
        self.kinds = kinds_of(model)
        self._names: set[str] = set()
        self._all_of: set[type] = set()
        """Classes of which all attributes count as read."""
        self._known: dict[type, dict[str, bool]] = {}
        for kind, forward in self.kinds:
            self._add(kind, _names_of(kind, forward))
        met: set[type] = set()
        while new := {type(value) for _, value in reachable(model, self)} - met:
            met |= new
            for kind in new:
                if not issubclass(kind, nn.Module) and not _is_elsewhere(kind):
                    self._add(kind, _names_of(kind, None))  # type: ignore[arg-type]

    def _add(self, kind: type, names: frozenset[str] | None) -> None:
        if names is None:
            self._all_of.add(kind)
        else:
            self._names |= names

    def has(self, kind: type, name: str) -> bool:
        """Whether an attribute of modules of a class may be read."""
        return name in self._names or name in OF_MODULES or kind in self._all_of

    def of(self, module: nn.Module) -> Iterator[Any]:
        """Return the values of a module's attributes that may be read, but for its tables."""
        kind = type(module)
        known = self._known.setdefault(kind, dict.fromkeys(HOOK_TABLES, False))
        for name, value in module.__dict__.items():
            if name not in known:
                known[name] = self.has(kind, name)
            if known[name]:
                yield value


def kinds_of(model: nn.Module) -> tuple[tuple[type, Any], ...]:
    """Return the classes of a model's modules, each with its forward."""
    found: dict[tuple[type, Any], None] = {}
    for module in modules_of(model):
        forward = module.__dict__.get("forward")
        kind = type(module)
        if forward is None:
            # (that of torch.jit's classes cannot be read from them)
            forward = next(
                vars(base)["forward"] for base in kind.__mro__ if "forward" in vars(base)
            )
        elif isinstance(forward, MethodType):
            forward = forward.__func__
        found[kind, forward if isinstance(forward, FunctionType) else None] = None
    return tuple(found)


def _forward_of(kind: type) -> Any:
    """Return a class's forward as it stands there: that of torch.jit's classes cannot be read."""
    return next(vars(one)["forward"] for one in kind.__mro__ if "forward" in vars(one))


@cache
def _names_of(kind: Hashable, forward: Hashable) -> frozenset[str] | None:
    """Return the names in all code that a forward may call; None where any name may be read.

    Of a class that is no module's, any method may be called.
    """
    assert isinstance(kind, type)
    if not issubclass(kind, nn.Module):
        return _Code(kind, [one for base in kind.__mro__ for one in vars(base).values()]).names
    if kind.__module__.partition(".")[0] == "torch" or not isinstance(forward, FunctionType):
        return None
    return _Code(kind, [forward]).names


class _Code:
    """The functions that a forward may call, as far as their names are in code."""

    def __init__(self, kind: type, functions: Iterable[Any]) -> None:
        self._bases = [one for one in kind.__mro__ if one not in (nn.Module, object)]
        self._seen: set[Any] = set()
        self._waiting: list[FunctionType] = []
        self._names: set[str] = set()
        self._is_computed = False
        for function in functions:
            self._add_all(function)
        for base in self._bases:
            for name in base.__dict__.keys() & UNNAMED:
                self._add(base.__dict__[name])
        while self._waiting and not self._is_computed:
            self._look_at(self._waiting.pop())

    @cached_property
    def names(self) -> frozenset[str] | None:
        return None if self._is_computed else frozenset(self._names)

    def _look_at(self, function: FunctionType) -> None:
        names: set[str] = set()
        for code in _codes(function.__code__):
            self._is_computed |= _computes_names(code)
            names.update(code.co_names)
            names.update(one for one in code.co_consts if isinstance(one, str))
        self._names |= names
        for name in names:
            for base in self._bases:
                self._add(base.__dict__.get(name))
        for name in names & function.__globals__.keys():
            self._add_global(function.__globals__[name], names)
        for cell in function.__closure__ or ():
            try:
                self._add_global(cell.cell_contents, names)
            except ValueError:  # an empty one
                continue

    def _add_global(self, value: Any, names: set[str]) -> None:
        """Look at a function, the methods of a class or an object, or functions of a module."""
        if isinstance(value, ModuleType):
            if value.__name__.partition(".")[0] not in ELSEWHERE:
                for name in names & value.__dict__.keys():
                    self._add_global(value.__dict__[name], set())
            return
        if isinstance(value, FunctionType | MethodType | partial):
            self._add(value)
            return
        kind = value if isinstance(value, type) else type(value)
        if _is_elsewhere(kind) or issubclass(kind, nn.Module):
            return
        if id(value) in self._seen:
            return
        self._seen.add(id(value))
        for base in kind.__mro__:
            if not _is_elsewhere(base):
                for one in base.__dict__.values():
                    self._add_all(one)
        for one in list(getattr(value, "__dict__", {}).values()) if kind is not value else ():
            self._add_all(one)

    def _add_all(self, value: Any) -> None:
        """Look at a function, or at those of a table."""
        if isinstance(value, dict):
            for one in list(value.values()):
                self._add(one)
        else:
            self._add(value)

    def _add(self, value: Any) -> None:
        for function in _functions(value):
            if function.__code__ in self._seen:
                continue
            package = (function.__module__ or "").partition(".")[0]
            if package in ELSEWHERE and not self._is_method(function):
                continue
            self._seen.add(function.__code__)
            self._waiting.append(function)
            self._is_computed |= len(self._seen) > MAX_FUNCTIONS

    def _is_method(self, function: FunctionType) -> bool:
        name = function.__name__
        return any(function is base.__dict__.get(name) for base in self._bases)


def _is_elsewhere(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in ELSEWHERE


def _functions(value: Any) -> Iterator[FunctionType]:
    """Return the functions of a method, a property or a decorated function."""
    if isinstance(value, FunctionType):
        yield value
        yield from _functions(value.__dict__.get("__wrapped__"))
    elif isinstance(value, MethodType | staticmethod | classmethod):
        yield from _functions(value.__func__)
    elif isinstance(value, partial | partialmethod):
        yield from _functions(value.func)
    elif isinstance(value, property):
        for one in (value.fget, value.fset):
            yield from _functions(one)
    elif isinstance(value, cached_property):
        yield from _functions(value.func)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from _codes(one)


def _computes_names(code: CodeType) -> bool:
    """Whether attributes are read whose names are not in the code."""
    if not COMPUTED.isdisjoint(code.co_names):
        return True
    if BY_NAME.isdisjoint(code.co_names):
        return False
    pushed: list[bool] | None = None
    """Of each argument of such a function that is loaded, whether it is a constant name."""
    for one in dis.get_instructions(code):
        if one.opname.startswith("LOAD") and one.argval in BY_NAME:
            pushed = []
        elif pushed is None or one.opname in NEUTRAL:
            continue
        elif one.opname.startswith("LOAD_FAST_") and one.opname.count("FAST") == 2:
            pushed += [False, False]
        elif one.opname.startswith("LOAD"):
            pushed.append(one.opname == "LOAD_CONST" and isinstance(one.argval, str))
        elif one.opname != "CALL" or one.arg != len(pushed) or not all(pushed[1:2]):
            return True  # the name is computed, or it cannot be told
        else:
            pushed = None
    return False
